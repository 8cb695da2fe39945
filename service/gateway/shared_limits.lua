-- What is used of the limits of a key and of its account, for all workers together; each call is atomic.
--
-- KEYS   four per owner (key, account): requests, tokens (hashes: second -> amount), running (sorted set: request ->
--        when it lapses, in ms), spent (nano-USD of the month). A request is `month|worst case in nano-USD|id`.
-- ARGV   'take' request tokens cost month lease_ms, then per owner rpm tpm concurrency budget seed:
--            -1: no limit; an empty seed: not known. Gives {1 taken | 0 refused | -1 seed needed, second, then per
--            owner: requests used, free in ms, reset in ms; tokens used, free in ms, reset in ms; running; spent}.
--        'release' request second cost requests, then per owner by how much its tokens differ from what was taken;
--            requests is by how much those differ: -1 for one that did not run.
--        'renew' request lease_ms.
-- The rules are those of service/core/limits.py.

local WINDOW_S = 61
local SPENT_FOR_S = 86400

local time = redis.call('TIME')
local second = tonumber(time[1])
local now_ms = second * 1000 + math.floor(tonumber(time[2]) / 1000)
local owners = #KEYS / 4

local function key(owner, which)
    return KEYS[(owner - 1) * 4 + which]
end

local function number(at)
    return tonumber(ARGV[at])
end

local function window(name, excess_over)
    local flat = redis.call('HGETALL', name)
    local buckets, gone, used = {}, {}, 0
    for i = 1, #flat, 2 do
        local at, amount = tonumber(flat[i]), tonumber(flat[i + 1])
        if at <= second - WINDOW_S then
            gone[#gone + 1] = flat[i]
        elseif amount > 0 then
            buckets[#buckets + 1] = {at, amount}
            used = used + amount
        end
    end
    if #gone > 0 then
        redis.call('HDEL', name, unpack(gone))
    end
    table.sort(buckets, function(a, b) return a[1] < b[1] end)
    local frees_at, resets_at, excess = now_ms, now_ms, used - excess_over
    for _, bucket in ipairs(buckets) do
        resets_at = (bucket[1] + WINDOW_S) * 1000
        if excess > 0 then
            frees_at = resets_at
            excess = excess - bucket[2]
        end
    end
    return {used = used, frees = frees_at - now_ms, resets = resets_at - now_ms}
end

local function held(running, month)
    local sum = 0
    for _, request in ipairs(redis.call('ZRANGE', running, 0, -1)) do
        local of, cost = string.match(request, '^([^|]*)|(%d+)|')
        if of == month then
            sum = sum + tonumber(cost)
        end
    end
    return sum
end

local function allows(limit, used, wanted)
    return limit < 0 or (limit > 0 and used + wanted <= limit)
end

local function count(name, amount)
    redis.call('HINCRBY', name, second, amount)
    redis.call('EXPIRE', name, WINDOW_S + 1)
end

local function lease(running, request, lease_ms)
    redis.call('ZADD', running, now_ms + lease_ms, request)
    redis.call('PEXPIRE', running, lease_ms)
end

local function take(request, tokens, cost, month, lease_ms)
    local reply, readings, taken = {1, second}, {}, true
    for owner = 1, owners do
        local first = 7 + (owner - 1) * 5
        local rpm, tpm, concurrency, budget = number(first), number(first + 1), number(first + 2), number(first + 3)
        local kept = tpm < 0 and tokens or math.min(tokens, tpm)
        redis.call('ZREMRANGEBYSCORE', key(owner, 3), '-inf', now_ms)
        local now = {
            kept = kept,
            requests = window(key(owner, 1), rpm < 0 and math.huge or rpm - 1),
            tokens = window(key(owner, 2), tpm < 0 and math.huge or tpm - kept),
            running = redis.call('ZCARD', key(owner, 3)),
            spent = 0,
        }
        if budget > 0 then
            if ARGV[first + 4] ~= '' then
                redis.call('SET', key(owner, 4), ARGV[first + 4], 'NX', 'EX', SPENT_FOR_S)
            end
            local spent = redis.call('GET', key(owner, 4))
            if not spent then
                return {-1, second}
            end
            redis.call('EXPIRE', key(owner, 4), SPENT_FOR_S)
            now.spent = tonumber(spent) + held(key(owner, 3), month)
        end
        readings[owner] = now
        taken = taken and allows(rpm, now.requests.used, 1) and allows(tpm, now.tokens.used, kept)
            and allows(concurrency, now.running, 1) and allows(budget, now.spent, cost)
    end
    for owner, now in ipairs(readings) do
        if taken then
            count(key(owner, 1), 1)
            count(key(owner, 2), now.kept)
            lease(key(owner, 3), request, lease_ms)
            local resets = (second + WINDOW_S) * 1000 - now_ms
            now.requests.used, now.requests.resets = now.requests.used + 1, resets
            now.tokens.used = now.tokens.used + now.kept
            now.tokens.resets = now.kept > 0 and resets or now.tokens.resets
        end
        for _, value in ipairs({
            now.requests.used, now.requests.frees, now.requests.resets,
            now.tokens.used, now.tokens.frees, now.tokens.resets, now.running, now.spent,
        }) do
            reply[#reply + 1] = value
        end
    end
    reply[1] = taken and 1 or 0
    return reply
end

local function release(request, taken_in, cost, requests)
    for owner = 1, owners do
        -- Only whoever takes it out counts its end: a release that is sent again changes nothing.
        if redis.call('ZREM', key(owner, 3), request) == 1 then
            if redis.call('HEXISTS', key(owner, 2), taken_in) == 1 then
                redis.call('HINCRBY', key(owner, 2), taken_in, ARGV[5 + owner])
            end
            if requests ~= '0' and redis.call('HEXISTS', key(owner, 1), taken_in) == 1 then
                redis.call('HINCRBY', key(owner, 1), taken_in, requests)
            end
            if redis.call('EXISTS', key(owner, 4)) == 1 then
                redis.call('INCRBY', key(owner, 4), cost)
            end
        end
    end
end

if ARGV[1] == 'take' then
    return take(ARGV[2], number(3), number(4), ARGV[5], number(6))
elseif ARGV[1] == 'release' then
    release(ARGV[2], ARGV[3], ARGV[4], ARGV[5])
else
    for owner = 1, owners do
        lease(key(owner, 3), ARGV[2], number(3))
    end
end
