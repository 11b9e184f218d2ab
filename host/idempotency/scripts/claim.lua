-- Claims a key. The same as claim in machine.go.
-- KEYS: the record. ARGV: owner, payload, label, ttl, lease, rerun, retry,
-- the error of an expired owner, channel, note.
-- Returns the verdict, the time, and the fence or the record.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function int(n) return string.format('%.0f', n) end

local key, owner, payload, ttl, lease = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local rerun, retry = ARGV[6] == '1', ARGV[7] == '1'
local f = redis.call('HMGET', key, 'status', 'owner', 'payload', 'fence', 'leaseUntil', 'rerun', 'expiresAt', 'claimedAt', 'unknown')
local status, oldOwner, fence, lapsed = f[1], f[2], tonumber(f[4]) or 0, false

if status == 'RELEASED' then
  -- The owner has released this claim; this is a retransmission by go-redis.
  if oldOwner == owner then return {'stale', int(now)} end
  status = false
elseif status and tonumber(f[7]) <= now then
  status = false
end

local function run(verdict, fence, claimedAt)
  if f[1] then redis.call('DEL', key) end
  redis.call('HSET', key, 'status', 'PENDING', 'expiresAt', int(now + lease + ttl),
    'owner', owner, 'fence', int(fence), 'payload', payload, 'claimedAt', int(claimedAt),
    'leaseUntil', int(now + lease), 'ttl', int(ttl), 'rerun', rerun and '1' or '0', 'label', ARGV[3])
  if ARGV[10] ~= '' then redis.call('HSET', key, 'note', ARGV[10]) end
  redis.call('PEXPIREAT', key, int(now + lease + ttl))
  return {verdict, int(now), int(fence)}
end
local function answer(verdict)
  return {verdict, int(now), redis.call('HGETALL', key)}
end

if not status then return run('run', 1, now) end
if f[3] ~= payload then return answer('reused') end
if status == 'PENDING' then
  if oldOwner == owner then return {'run', int(now), int(fence)} end
  if tonumber(f[5]) > now then return answer('held') end
  if rerun and f[6] == '1' then return run('take-over', fence + 1, tonumber(f[8])) end
  redis.call('HSET', key, 'status', 'FAILED', 'error', ARGV[8], 'unknown', '1', 'rerun', '0', 'endedAt', int(now))
  redis.call('PUBLISH', ARGV[9], key)
  return answer('unknown')
end
if f[9] == '1' then return answer('unknown') end
if status == 'FAILED' and retry and oldOwner ~= owner then return run('retry', fence + 1, now) end
return answer('replay')
