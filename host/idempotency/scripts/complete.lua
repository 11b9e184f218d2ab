-- Completes a call. The same as complete in machine.go.
-- KEYS: the record. ARGV: owner, fence, status (RELEASED releases the claim),
-- result, error, unknown, digest, size, milliseconds that a failure is kept,
-- milliseconds that a released claim is remembered, channel.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function int(n) return string.format('%.0f', n) end

local key, owner, status = KEYS[1], ARGV[1], ARGV[3]
local f = redis.call('HMGET', key, 'status', 'owner', 'fence', 'expiresAt', 'claimedAt', 'ttl', 'unknown')
local old = f[1]
if old == 'RELEASED' or old and tonumber(f[4]) <= now then old = false end

local function release()
  redis.call('DEL', key)
  redis.call('HSET', key, 'status', 'RELEASED', 'owner', owner)
  redis.call('PEXPIRE', key, ARGV[10])
  redis.call('PUBLISH', ARGV[11], key)
  return 'done'
end

if not old then
  if status == 'RELEASED' then return release() end
  return 'gone'
end
if f[2] ~= owner or f[3] ~= ARGV[2] and not (status == 'RELEASED' and ARGV[2] == '0') then return 'late' end
if old ~= 'PENDING' then
  if f[7] == '1' or status == 'RELEASED' then
    return ARGV[6] == '1' and 'done' or 'late'
  end
  return 'done'
end
if status == 'RELEASED' then return release() end

local ttl = tonumber(f[6])
local short = math.min(tonumber(ARGV[9]), ttl)
local expires = math.max(tonumber(f[5]) + ttl, now + short)
if ARGV[6] == '1' then
  expires = now + ttl
elseif status == 'FAILED' then
  expires = now + short
end
-- One command: each round trip into Redis costs more than the decision above.
local set = {'status', status, 'expiresAt', int(expires), 'endedAt', int(now)}
local function also(name, value)
  set[#set + 1] = name
  set[#set + 1] = value
end
if ARGV[4] ~= '' then also('result', ARGV[4]) end
if ARGV[5] ~= '' then also('error', ARGV[5]) end
if ARGV[6] == '1' then also('unknown', '1') end
if ARGV[7] ~= '' then
  also('digest', ARGV[7])
  also('size', ARGV[8])
end
if ARGV[6] ~= '1' then redis.call('HDEL', key, 'note') end
redis.call('HSET', key, unpack(set))
redis.call('PEXPIREAT', key, int(expires))
redis.call('PUBLISH', ARGV[11], key)
return 'done'
