-- Renews a lease. The same as renew in machine.go.
-- KEYS: the record. ARGV: owner, fence, lease.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function int(n) return string.format('%.0f', n) end

local key = KEYS[1]
local f = redis.call('HMGET', key, 'status', 'owner', 'fence', 'expiresAt', 'ttl')
if not f[1] or f[1] == 'RELEASED' or tonumber(f[4]) <= now then return 'gone' end
if f[1] ~= 'PENDING' or f[2] ~= ARGV[1] or f[3] ~= ARGV[2] then return 'late' end
local lease = now + tonumber(ARGV[3])
local expires = lease + tonumber(f[5])
redis.call('HSET', key, 'leaseUntil', int(lease), 'expiresAt', int(expires))
redis.call('PEXPIREAT', key, int(expires))
return 'done'
