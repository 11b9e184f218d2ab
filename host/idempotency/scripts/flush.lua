-- Removes a record, unless its call runs. The same as flushable in machine.go.
-- KEYS: the record. ARGV: channel.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local f = redis.call('HMGET', KEYS[1], 'status', 'leaseUntil', 'expiresAt')
if not f[1] or f[1] == 'RELEASED' or (tonumber(f[3]) or now + 1) <= now then return 'gone' end
if f[1] == 'PENDING' and (tonumber(f[2]) or 0) > now then return 'held' end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[1], KEYS[1])
return 'done'
