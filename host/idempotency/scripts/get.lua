-- Reads a record. KEYS: the record. Returns the time and the record.
local t = redis.call('TIME')
return {string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)), redis.call('HGETALL', KEYS[1])}
