"""Whether the recorded operations on one key could have been done one after the other, each at one moment between its call and its reply.

The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993) with Lowe's memory of what has been tried ("Testing for linearizability", 2017): a configuration is the set of
operations done so far and the value after them; it is left by any operation that was called before the first of those that are left got its reply, and that would have got the reply that it got.
A history that cannot be ordered is a VIOLATION; where the search has looked at as many configurations as it may it is UNDECIDED, which is never taken for fine.

Operations: GET, SET, GETSET, DEL, INCR, APPEND. One without a known outcome (a time-out, a lost connection) may be done at any moment after its call, or never. Such operations would multiply the
configurations, since each is possible at every step and few ever happened. So they are done as late as possible: directly before an operation that could not have got its reply without them, or might
have got it with other bytes behind it (APPEND tells a length only). That loses no order: one that is done earlier can be moved back to there, and one that nothing needs can be left out.

Where servers lose acknowledged writes (replication is asynchronous), a Loss says when: it may set the value back once to one that it had before, and everybody has to see that alike."""

import heapq
import math

OK, VIOLATION, UNDECIDED = "ok", "violation", "undecided"
UNKNOWN = object()  # the result of an operation without a known outcome

READS = ("GET",)
OVERWRITES = ("SET", "GETSET", "DEL")


class Operation:
    """One operation on the key. Times are of one clock. result: as resp.py has replies, or UNKNOWN."""

    __slots__ = ("client", "name", "argument", "invoked", "returned", "result")

    def __init__(self, client, name, argument, invoked, returned, result):
        self.client = client
        self.name = name
        self.argument = argument
        self.invoked = invoked
        self.returned = math.inf if result is UNKNOWN else returned
        self.result = result

    def __repr__(self):
        argument = "" if self.argument is None else " %r" % self.argument
        outcome = "no outcome" if self.result is UNKNOWN else "%r at %.6f" % (self.result, self.returned)
        return "%.6f %s: %s%s: %s" % (self.invoked, self.client, self.name, argument, outcome)


class Loss:
    """Between two times the key may have fallen back to a value that it had before. For histories of SET and GET with values that are written once, or of INCR and GET."""

    def __init__(self, begins, ends):
        self.begins = begins
        self.ends = ends


class Verdict:
    def __init__(self, kind, configurations, text=""):
        self.kind = kind
        self.configurations = configurations
        self.text = text

    def __repr__(self):
        return "%s after %d configurations%s" % (self.kind, self.configurations, "\n" + self.text if self.text else "")


def apply(state, name, argument):
    """What the operation makes of the value (None: the key does not exist), and its reply. An INCR of what is not a number has the reply None."""
    if name == "GET":
        return state, state
    if name == "SET":
        return argument, "OK"
    if name == "GETSET":
        return argument, state
    if name == "DEL":
        return None, 0 if state is None else 1
    if name == "INCR":
        if state is not None and not state.lstrip(b"-").isdigit():
            return state, None
        value = int(state or 0) + 1
        return b"%d" % value, value
    if name == "APPEND":
        value = (state or b"") + argument
        return value, len(value)
    raise ValueError("no operation of the model: %s" % name)


def may_lead_to(state, goal):
    """Whether INCR and APPEND, or nothing, can make of the value one with which the operation gets its reply. True where that is not easily told."""
    name, result = goal.name, goal.result
    if name in ("GET", "GETSET"):
        if state is None:
            return True
        return result is not None and (result.startswith(state) or is_number_up_to(state, result))
    if name == "INCR":
        return state is None or is_number_up_to(state, b"%d" % result)
    if name == "APPEND":
        return len(state or b"") <= result - len(goal.argument)
    return result == 1 or state is None  # DEL


def is_number_up_to(state, limit):
    return state.lstrip(b"-").isdigit() and limit.lstrip(b"-").isdigit() and int(state) <= int(limit)


class Search:
    """One history: `known` by their calls, `unknown` writes by theirs, and losses."""

    def __init__(self, operations, losses, initial):
        self.known = sorted((one for one in operations if one.result is not UNKNOWN), key=lambda one: one.invoked)
        # What was read without an outcome says nothing.
        self.unknown = sorted((one for one in operations if one.result is UNKNOWN and one.name not in READS), key=lambda one: one.invoked)
        self.losses = losses
        self.initial = initial
        self.written = {}
        self.is_counter = False
        if losses:
            self.index_written()

    def index_written(self):
        """value -> (is known, place): to know what a key may fall back to, every value but a counter's must tell which operation wrote it."""
        names = {one.name for one in self.known + self.unknown} - set(READS)
        if not names <= {"SET", "GETSET"} and names != {"INCR"}:
            raise ValueError("a history with a Loss is one of a counter or of values that are set: %s" % names)
        for is_known, some in ((True, self.known), (False, self.unknown)):
            for place, one in enumerate(some):
                if one.name in ("SET", "GETSET"):
                    if one.argument in self.written or one.argument == self.initial:
                        raise ValueError("with a Loss each value may be written once: %r" % one.argument)
                    self.written[one.argument] = (is_known, place)
        self.is_counter = names == {"INCR"}

    def candidates(self, low, mask):
        """Known operations that may be done next, and the time by which one of them must be."""
        horizon = math.inf
        found = []
        known = self.known
        for place in range(low, len(known)):
            one = known[place]
            if one.invoked > horizon:
                break
            if mask >> (place - low) & 1:
                continue
            found.append(place)
            if one.returned < horizon:
                horizon = one.returned
        return [place for place in found if known[place].invoked <= horizon], horizon

    def was_held(self, value, low, mask, taken):
        """Whether the key has had the value by now: it was written by an operation that is done."""
        if value == self.initial:
            return True
        is_known, place = self.written.get(value, (None, 0))
        if is_known is None:
            return False
        if not is_known:
            return bool(taken >> place & 1)
        return place < low or bool(mask >> (place - low) & 1)

    def latest_call(self, low, mask, taken):
        """Of what is done."""
        last = low + mask.bit_length() - 1
        last_unknown = (taken & ((1 << len(self.unknown)) - 1)).bit_length() - 1
        return max(self.known[last].invoked if last >= 0 else -math.inf, self.unknown[last_unknown].invoked if last_unknown >= 0 else -math.inf)

    @staticmethod
    def was_passed(value, state):
        """Whether a counter with this state has had the value by now."""
        return state is not None and (value is None or is_number_up_to(value, state))

    def fallbacks(self, goal, low, mask, taken, state, horizon):
        """What a loss makes of the value so that the operation gets its reply."""
        for number, loss in enumerate(self.losses):
            bit = 1 << (len(self.unknown) + number)
            if taken & bit or loss.begins > horizon or self.latest_call(low, mask, taken) > loss.ends:
                continue
            if goal.name == "INCR":
                value = b"%d" % (goal.result - 1) if goal.result > 1 else self.initial
            elif goal.name in ("GET", "GETSET"):
                value = goal.result
            else:
                continue
            if value != state and (self.was_passed(value, state) if self.is_counter else self.was_held(value, low, mask, taken)):
                yield taken | bit, value

    def unknown_ways(self, goal, low, mask, taken, state, horizon):
        """Ways in which operations without an outcome, done now, give the known one its reply: (taken, value) each. At first at most one that overwrites, or a loss, then any that add."""
        starts = [(taken, state)]
        seen = set()
        for place, one in enumerate(self.unknown):
            if one.invoked > horizon:
                break
            if taken >> place & 1 or one.name not in OVERWRITES:
                continue
            value = None if one.name == "DEL" else one.argument
            if value not in seen and may_lead_to(value, goal):
                seen.add(value)
                starts.append((taken | 1 << place, value))
        starts.extend(self.fallbacks(goal, low, mask, taken, state, horizon))
        while starts:
            now, value = starts.pop()
            if now != taken and apply(value, goal.name, goal.argument)[1] == goal.result:
                yield now, value
                if goal.name != "APPEND":
                    continue
            seen = set()
            for place, one in enumerate(self.unknown):
                if one.invoked > horizon:
                    break
                # Of several that are alike the first stands for all.
                if now >> place & 1 or one.name in OVERWRITES or (one.name, one.argument) in seen:
                    continue
                seen.add((one.name, one.argument))
                longer = apply(value, one.name, one.argument)[0]
                if longer != value and may_lead_to(longer, goal):
                    starts.append((now | 1 << place, longer))

    def successors(self, low, mask, taken, state):
        found, horizon = self.candidates(low, mask)
        found.sort(key=lambda place: self.known[place].returned)
        for is_direct in (True, False):
            for place in found:
                one = self.known[place]
                after, result = apply(state, one.name, one.argument)
                fits = result == one.result
                if is_direct and fits:
                    yield self.done(low, mask, place) + (taken, after)
                elif not is_direct and one.name != "SET" and (not fits or one.name == "APPEND"):
                    for now, value in self.unknown_ways(one, low, mask, taken, state, horizon):
                        yield self.done(low, mask, place) + (now, apply(value, one.name, one.argument)[0])

    @staticmethod
    def done(low, mask, place):
        mask |= 1 << (place - low)
        while mask & 1:
            mask >>= 1
            low += 1
        return low, mask

    def explain(self, low, mask, taken, state):
        found, _ = self.candidates(low, mask)
        recent = [self.known[place] for place in range(max(0, low - 6), low)]
        pending = [one for place, one in enumerate(self.unknown) if not taken >> place & 1 and one.invoked <= max(self.known[place].returned for place in found)]
        lines = ["The longest order found does %d of %d operations and leaves %r. Done last, by call:" % (low + bin(mask).count("1"), len(self.known), shorten(state))]
        lines += ["  " + repr(one) for one in recent]
        lines += ["None of these can be next:"] + ["  " + repr(self.known[place]) for place in found]
        lines += ["Without an outcome, and not needed so far: %d" % len(pending)] + ["  " + repr(one) for one in pending[-8:]]
        return "\n".join(lines)


def shorten(value):
    return value if value is None or len(value) <= 80 else value[:80] + b"..."


class Memory:
    """What has been tried. A configuration is tried already where one was with the same operations done, the same value, and no more used up of what has no outcome: whatever can follow it could
    follow that one."""

    def __init__(self):
        self.taken = {}
        self.count = 0

    def is_new(self, configuration):
        low, mask, taken, state = configuration
        tried = self.taken.setdefault((low, mask, state), [])
        if any(one & taken == one for one in tried):
            return False
        tried.append(taken)
        self.count += 1
        return True


def check(operations, losses=(), initial=None, configurations_max=1000000):
    """The verdict on the operations of one key whose value was `initial` before all of them."""
    search = Search(operations, list(losses), initial)
    if not search.known:
        return Verdict(OK, 1)
    memory = Memory()
    furthest, most = (0, 0, 0, initial), 0
    number = 0
    # Those that have used up least of what has no outcome first, since they stand for the others, then those that are furthest.
    heap = [(0, 0, number, furthest)]
    while heap:
        configuration = heapq.heappop(heap)[3]
        if not memory.is_new(configuration):
            continue
        if memory.count > configurations_max:
            return Verdict(UNDECIDED, configurations_max, search.explain(*furthest))
        for following in search.successors(*configuration):
            low, mask, taken, _ = following
            count = low + bin(mask).count("1")
            if count == len(search.known):
                return Verdict(OK, memory.count)
            if count > most:
                furthest, most = following, count
            number += 1
            heapq.heappush(heap, (bin(taken).count("1"), -count, number, following))
    return Verdict(VIOLATION, memory.count, search.explain(*furthest))
