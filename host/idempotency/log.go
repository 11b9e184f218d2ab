package idempotency

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// LogRedis has go-redis write to log, in place of lines of its own on standard
// error. It holds for the whole process: a main calls it, once.
func LogRedis(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

type redisLog struct{ *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
}
