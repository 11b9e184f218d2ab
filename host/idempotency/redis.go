package idempotency

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/host/redisdb"
)

// Each script decides on one record within Redis, by the clock of Redis, exactly
// as its function in machine.go does.
var (
	//go:embed scripts/claim.lua
	claimSource string
	//go:embed scripts/complete.lua
	completeSource string
	//go:embed scripts/renew.lua
	renewSource string
	//go:embed scripts/get.lua
	getSource string
	//go:embed scripts/flush.lua
	flushSource string
	//go:embed scripts/note.lua
	noteSource string
	//go:embed scripts/resolve.lua
	resolveSource string
)

// redisStore holds records in a Redis that several hosts share, each record a
// hash. Scripts may be transmitted again, so every one is idempotent per owner.
type redisStore struct {
	db      *redisdb.DB
	onEnded func(id)

	claimScript, completeScript, renewScript, getScript, flushScript, noteScript, resolveScript *redisdb.Script
}

// openRedis opens the Redis of an address; see redisdb.Open for its parameters.
func openRedis(ctx context.Context, address string, ended func(id)) (*redisStore, error) {
	db, err := redisdb.Open(ctx, address)
	if err != nil {
		return nil, err
	}
	return &redisStore{
		db: db, onEnded: ended,
		claimScript: redisdb.NewScript(claimSource), completeScript: redisdb.NewScript(completeSource),
		renewScript: redisdb.NewScript(renewSource), getScript: redisdb.NewScript(getSource),
		flushScript: redisdb.NewScript(flushSource), noteScript: redisdb.NewScript(noteSource), resolveScript: redisdb.NewScript(resolveSource),
	}, nil
}

// eval runs a script on a record.
func (s *redisStore) eval(ctx context.Context, script *redisdb.Script, i id, durable bool, args ...any) (any, error) {
	v, err := s.db.Run(ctx, script, i.String(), durable, args...)
	return v, unavailable(err)
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
}

const (
	// endedChannel carries the name of each completed record.
	endedChannel = "idemp:ended"
	// keepReleased is how long a released claim is remembered, so that a
	// retransmission in flight cannot restore it.
	keepReleased = time.Minute
)

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func (s *redisStore) claim(ctx context.Context, i id, c claimRequest) (*record, time.Duration, verdict, error) {
	lapsed, _ := json.Marshal(lapsedFailure())
	reply, err := s.eval(ctx, s.claimScript, i, true,
		c.owner, c.payload, c.label, c.ttl, c.lease, flag(c.rerun), flag(c.retry), lapsed, endedChannel, string(c.note))
	if err != nil {
		return nil, 0, 0, err
	}
	list, _ := reply.([]any)
	if len(list) < 2 {
		return nil, 0, 0, fmt.Errorf("%w: redis: an unexpected answer to a claim", ErrStoreUnavailable)
	}
	word, _ := list[0].(string)
	now, err := toInt(list[1])
	if err != nil {
		return nil, 0, 0, fmt.Errorf("%w: redis: the time: %w", ErrStoreUnavailable, err)
	}
	var v verdict
	switch word {
	case "run", "take-over", "retry":
		v = map[string]verdict{"run": verdictRun, "take-over": verdictTakeOver, "retry": verdictRetry}[word]
		if len(list) < 3 {
			break
		}
		fence, err := toInt(list[2])
		if err != nil {
			return nil, 0, 0, fmt.Errorf("%w: redis: the fence: %w", ErrStoreUnavailable, err)
		}
		return &record{Status: Pending, Owner: c.owner, Payload: c.payload, Fence: fence, Rerun: c.rerun}, time.Duration(c.lease) * time.Millisecond, v, nil
	case "held":
		v = verdictHeld
	case "unknown":
		v = verdictUnknown
	case "reused":
		v = verdictReused
	case "replay":
		v = verdictReplay
	}
	if v == 0 || len(list) < 3 {
		return nil, 0, 0, fmt.Errorf("%w: redis: the claim was answered %.32q", ErrStoreUnavailable, word)
	}
	r, err := toRecord(list[2])
	if err != nil {
		return nil, 0, 0, fmt.Errorf("%w: redis: %s: %w", ErrStoreUnavailable, i, err)
	}
	return r, time.Duration(r.LeaseUntil-now) * time.Millisecond, v, nil
}

func (s *redisStore) complete(ctx context.Context, i id, e completion) (verdict, error) {
	status, fail, unknown := string(e.status), "", false
	if e.released {
		status = "RELEASED"
	}
	if e.err != nil {
		text, err := json.Marshal(e.err)
		if err != nil {
			return 0, err
		}
		fail, unknown = string(text), e.status == Failed && e.err.Code == CodeOutcomeUnknown
	}
	reply, err := s.eval(ctx, s.completeScript, i, true, e.owner, e.fence, status, string(e.result), fail, flag(unknown),
		e.digest, e.size, e.failedTTLMillis(), keepReleased.Milliseconds(), endedChannel)
	return toVerdict(reply, err)
}

func (s *redisStore) renew(ctx context.Context, i id, owner string, fence, lease int64) (verdict, error) {
	reply, err := s.eval(ctx, s.renewScript, i, false, owner, fence, lease)
	return toVerdict(reply, err)
}

func (s *redisStore) annotate(ctx context.Context, i id, owner string, fence int64, note json.RawMessage) (verdict, error) {
	return toVerdict(s.eval(ctx, s.noteScript, i, true, owner, fence, string(note)))
}

func (s *redisStore) resolve(ctx context.Context, i id, x resolution) (verdict, error) {
	return toVerdict(s.eval(ctx, s.resolveScript, i, true, x.owner, x.fence, flag(x.done), string(x.result), x.digest, x.size,
		keepFailed.Milliseconds(), endedChannel))
}

func toVerdict(reply any, err error) (verdict, error) {
	if err != nil {
		return 0, err
	}
	switch reply {
	case "done":
		return verdictDone, nil
	case "late":
		return verdictLate, nil
	case "gone":
		return verdictGone, nil
	case "held":
		return verdictHeld, nil
	}
	return 0, fmt.Errorf("%w: redis: an unexpected answer", ErrStoreUnavailable)
}

func (s *redisStore) get(ctx context.Context, i id) (*record, time.Duration, error) {
	reply, err := s.eval(ctx, s.getScript, i, false)
	if err != nil {
		return nil, 0, err
	}
	list, _ := reply.([]any)
	if len(list) != 2 {
		return nil, 0, fmt.Errorf("%w: redis: an unexpected answer", ErrStoreUnavailable)
	}
	now, err := toInt(list[0])
	if err == nil {
		var r *record
		if r, err = toRecord(list[1]); r != nil {
			if r = r.live(now); r == nil {
				return nil, 0, nil
			}
			r = r.settled(now)
			return r, time.Duration(r.LeaseUntil-now) * time.Millisecond, nil
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: redis: %s: %w", ErrStoreUnavailable, i, err)
	}
	return nil, 0, nil
}

func toInt(v any) (int64, error) {
	text, ok := v.(string)
	if !ok {
		return 0, fmt.Errorf("%T is not a number", v)
	}
	return strconv.ParseInt(text, 10, 64)
}

// toRecord reads the fields of a hash from RESP2 (a list) or RESP3 (a map). It
// returns nil for no record and for a released claim.
func toRecord(v any) (*record, error) {
	fields := map[string]string{}
	switch v := v.(type) {
	case []any:
		for n := 0; n+1 < len(v); n += 2 {
			name, _ := v[n].(string)
			fields[name], _ = v[n+1].(string)
		}
	case map[any]any:
		for name, value := range v {
			n, _ := name.(string)
			fields[n], _ = value.(string)
		}
	default:
		return nil, errUnreadable
	}
	return fromFields(fields)
}

func fromFields(fields map[string]string) (*record, error) {
	if len(fields) == 0 || fields["status"] == "RELEASED" {
		return nil, nil
	}
	r := &record{
		Status: Status(fields["status"]), Owner: fields["owner"], Payload: fields["payload"],
		Digest: fields["digest"], Label: fields["label"], Rerun: fields["rerun"] == "1",
	}
	size := int64(0)
	for name, to := range map[string]*int64{
		"expiresAt": &r.ExpiresAt, "fence": &r.Fence, "claimedAt": &r.ClaimedAt, "endedAt": &r.EndedAt,
		"leaseUntil": &r.LeaseUntil, "ttl": &r.TTL, "size": &size,
	} {
		if text := fields[name]; text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%w: %s: %w", errUnreadable, name, err)
			}
			*to = n
		}
	}
	r.Size = int(size)
	if text := fields["result"]; text != "" {
		if r.Result = json.RawMessage(text); !json.Valid(r.Result) {
			return nil, fmt.Errorf("%w: result is not JSON", errUnreadable)
		}
	}
	if text := fields["note"]; text != "" {
		if r.Note = json.RawMessage(text); !json.Valid(r.Note) {
			return nil, fmt.Errorf("%w: note is not JSON", errUnreadable)
		}
	}
	if text := fields["error"]; text != "" {
		if err := json.Unmarshal([]byte(text), &r.Error); err != nil {
			return nil, fmt.Errorf("%w: error: %w", errUnreadable, err)
		}
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return r, nil
}

func (s *redisStore) list(ctx context.Context, scope string, each func(string, *record) bool) error {
	prefix := id{scope: scope}.String()
	return unavailable(s.db.Scan(ctx, prefix, func(name string, fields map[string]string, err error, now int64) bool {
		r, unreadable := fromFields(fields)
		if err = cmp.Or(err, unreadable); err != nil {
			r = &record{Status: Failed, Error: &Failure{Code: CodeUnreadable, Message: err.Error()}, ExpiresAt: now + 1}
		}
		if r = r.live(now); r == nil {
			return true
		}
		return each(strings.TrimPrefix(name, prefix), r.settled(now))
	}))
}

func (s *redisStore) flush(ctx context.Context, i id) (found, flushed bool, err error) {
	v, err := toVerdict(s.eval(ctx, s.flushScript, i, false, endedChannel))
	return v == verdictDone || v == verdictHeld, v == verdictDone, err
}

// subscribe keeps one subscription for all keys. When completions may have been
// missed, all flights are polled.
func (s *redisStore) subscribe(ctx context.Context) error {
	return s.db.Subscribe(ctx, endedChannel, func(message string) {
		if message == "" {
			s.onEnded(id{})
		} else if scope, key, ok := strings.Cut(strings.TrimPrefix(message, "idemp:"), ":"); ok {
			s.onEnded(id{scope, key})
		}
	})
}

func (s *redisStore) ping(ctx context.Context) error { return unavailable(s.db.Ping(ctx)) }

func (s *redisStore) survives(ctx context.Context) string { return s.db.Survives(ctx) }

func (s *redisStore) close() error { return s.db.Close() }
