package tools

import (
	"context"
	"time"
)

// Watch examines the folders until ctx ends or the catalog is closed.
func (c *Catalog) Watch(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.Restat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.examineAll()
		case <-ctx.Done():
			return nil
		case <-c.ctx.Done():
			return nil
		}
	}
}

// examineAll looks at every folder and at every tool that is known.
func (c *Catalog) examineAll() {
	names, err := toolNames(c.cfg.Dir)
	if err != nil {
		c.log.Error("list the tools folder", "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		c.examineLocked(name)
	}
	for name := range c.tools {
		c.examineLocked(name)
	}
}
