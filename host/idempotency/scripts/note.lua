-- Writes down what the owner of a call knows before it runs. The same as annotate
-- in machine.go.
-- KEYS: the record. ARGV: owner, fence, note.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local key = KEYS[1]
local f = redis.call('HMGET', key, 'status', 'owner', 'fence', 'expiresAt')
if not f[1] or f[1] == 'RELEASED' or tonumber(f[4]) <= now then return 'gone' end
if f[1] ~= 'PENDING' or f[2] ~= ARGV[1] or f[3] ~= ARGV[2] then return 'late' end
redis.call('HSET', key, 'note', ARGV[3])
return 'done'
