-- Resolves an unknown outcome. The same as resolve in machine.go.
-- KEYS: the record. ARGV: owner, fence, 1 if the call was done, result, digest,
-- size, milliseconds that a result is kept at least, channel.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function int(n) return string.format('%.0f', n) end

local key = KEYS[1]
local f = redis.call('HMGET', key, 'status', 'owner', 'fence', 'expiresAt', 'claimedAt', 'ttl', 'unknown', 'leaseUntil', 'rerun')
if not f[1] or f[1] == 'RELEASED' or tonumber(f[4]) <= now then return 'gone' end
local unknown = f[7] == '1' or f[1] == 'PENDING' and (tonumber(f[8]) or 0) <= now and f[9] ~= '1'
if f[2] ~= ARGV[1] or f[3] ~= ARGV[2] or not unknown then return 'late' end
if ARGV[3] ~= '1' then
  redis.call('DEL', key)
  redis.call('PUBLISH', ARGV[8], key)
  return 'done'
end
local ttl = tonumber(f[6])
local expires = math.max(tonumber(f[5]) + ttl, now + math.min(tonumber(ARGV[7]), ttl))
redis.call('HDEL', key, 'unknown', 'error', 'result', 'digest', 'size', 'note', 'leaseUntil')
local set = {'status', 'COMPLETED', 'expiresAt', int(expires), 'endedAt', int(now)}
local function also(name, value)
  set[#set + 1] = name
  set[#set + 1] = value
end
if ARGV[4] ~= '' then also('result', ARGV[4]) end
if ARGV[5] ~= '' then
  also('digest', ARGV[5])
  also('size', ARGV[6])
end
redis.call('HSET', key, unpack(set))
redis.call('PEXPIREAT', key, int(expires))
redis.call('PUBLISH', ARGV[8], key)
return 'done'
