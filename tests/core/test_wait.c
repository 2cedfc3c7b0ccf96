/*
 * core/wait: its rules, and a simulation of a core with clients and a backend, which shows what the rules are for: fewer and larger batches where CPU time is short, no wait where it is not.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/wait.h"

TestSuite(wait, .timeout = 60);

#define MAX_NS UINT64_C(1000000)
#define US UINT64_C(1000)

static const struct wait_settings automatic = {.mode = WAIT_AUTO, .wait_max_ns = MAX_NS};

static void measure_permille(struct wait *wait, uint64_t *now_ns, uint64_t permille)
{
    *now_ns += WAIT_PERIOD_NS;
    const struct wait_time time = {.passed_ns = WAIT_PERIOD_NS, .run_ns = WAIT_PERIOD_NS * permille / 1000};
    wait_measure(wait, *now_ns, &time);
}

/* So many clients have just asked. */
static void make_active(struct wait *wait, uint32_t clients)
{
    uint32_t stamps[4096] = {0};
    for (uint32_t i = 0; i < clients; i++)
        wait_client_active(wait, &stamps[i]);
}

Test(wait, off_and_fixed_do_as_they_are_told)
{
    const struct wait_settings off = {.mode = WAIT_OFF};
    const struct wait_settings fixed = {.mode = WAIT_FIXED, .completions = 32, .wait_ns = 300 * US};
    const struct wait_counts counts = {.sends = 50, .waiting = 10};
    struct wait wait;
    uint64_t now_ns = 5;
    wait_init(&wait, &off, now_ns);
    for (int i = 0; i < 50; i++)
        measure_permille(&wait, &now_ns, 1000);
    make_active(&wait, 100);
    struct wait_decision decision = wait_decide(&wait, now_ns, &counts);
    cr_expect(decision.completions == 1 && decision.wait_ns == 0);
    cr_expect_not(wait_period_is_over(&wait, UINT64_MAX), "nothing is measured for it");
    wait_init(&wait, &fixed, now_ns);
    decision = wait_decide(&wait, now_ns, &counts);
    cr_expect(decision.completions == 32 && decision.wait_ns == 300 * US);
}

Test(wait, longest_wait_grows_with_the_need)
{
    static const struct {
        uint64_t run, delayed;
        uint32_t cpus_busy, need;
    } rows[] = {{0, 0, 0, 0}, {600, 0, 0, 0}, {600, 0, 850, 0}, {750, 0, 0, 500}, {900, 0, 0, 1000}, {1000, 0, 0, 1000}, {500, 500, 0, 0}, {300, 0, 910, 500}, {300, 0, 970, 1000}, {50, 60, 1000, 1000},
        {50, 40, 1000, 0}, {750, 0, 970, 1000}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wait wait;
        uint64_t now_ns = 0;
        wait_init(&wait, &automatic, now_ns);
        const struct wait_time time = {.passed_ns = WAIT_PERIOD_NS, .run_ns = WAIT_PERIOD_NS * rows[i].run / 1000, .delayed_ns = WAIT_PERIOD_NS * rows[i].delayed / 1000, .cpus_busy_permille = rows[i].cpus_busy};
        for (int period = 0; period < 60; period++)
            wait_measure(&wait, now_ns += WAIT_PERIOD_NS, &time);
        cr_expect_leq(abs((int)wait.need_permille - (int)rows[i].need), 5, "row %zu: %u", i, wait.need_permille);
        cr_expect_eq(wait_longest_ns(&wait), MAX_NS * wait.need_permille / 1000);
    }
}

Test(wait, need_follows_a_change_of_load_soon_and_single_bursts_hardly)
{
    struct wait wait;
    uint64_t now_ns = 0;
    wait_init(&wait, &automatic, now_ns);
    measure_permille(&wait, &now_ns, 1000);
    cr_expect_leq(wait.need_permille, 250, "one busy period is no load");
    for (int period = 0; period < 8; period++)
        measure_permille(&wait, &now_ns, 1000);
    cr_expect_gt(wait.need_permille, 850, "90 ms are");
    for (int period = 0; period < 16; period++)
        measure_permille(&wait, &now_ns, 0);
    cr_expect_lt(wait_longest_ns(&wait), 20 * US);
    for (int period = 0; period < 60; period++)
        measure_permille(&wait, &now_ns, 1000);
    const struct wait_time slept = {.passed_ns = UINT64_C(1000000000), .run_ns = 1000};
    wait_measure(&wait, now_ns + slept.passed_ns, &slept);
    cr_expect_eq(wait.need_permille, 0, "after a long sleep it begins anew");
}

Test(wait, no_more_is_waited_for_than_can_come)
{
    static const struct {
        uint32_t active, waiting, sends, completions; /* 1: no wait */
    } rows[] = {{200, 0, 0, 100}, {200, 100, 0, 100}, {200, 150, 0, 50}, {200, 150, 60, 110}, {200, 197, 0, 1}, {200, 200, 5, 1}, {200, 300, 5, 1}, {7, 0, 0, 1}, {8, 0, 0, 4}, {0, 0, 0, 1}, {1, 1, 1, 1},
        {4000, 0, 0, 1024}};
    /* With half of the need, for half as many. */
    struct wait half;
    uint64_t at_ns = 0;
    wait_init(&half, &automatic, at_ns);
    half.need_permille = 500;
    make_active(&half, 200);
    cr_expect_eq(wait_decide(&half, at_ns, &(struct wait_counts){0}).completions, 50);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wait wait;
        uint64_t now_ns = 0;
        wait_init(&wait, &automatic, now_ns);
        wait.need_permille = 1000;
        const struct wait_counts none = {0};
        (void)wait_decide(&wait, now_ns, &none); /* a new window */
        make_active(&wait, rows[i].active);
        const struct wait_counts counts = {.waiting = rows[i].waiting, .sends = rows[i].sends};
        const struct wait_decision decision = wait_decide(&wait, now_ns, &counts);
        cr_expect_eq(decision.completions, rows[i].completions, "row %zu: %u", i, decision.completions);
        cr_expect_eq(decision.wait_ns, rows[i].completions == 1 ? 0 : wait_longest_ns(&wait));
    }
}

Test(wait, clients_that_have_gone_silent_are_not_waited_for)
{
    struct wait wait;
    uint64_t now_ns = 0;
    wait_init(&wait, &automatic, now_ns);
    wait.need_permille = 1000;
    const struct wait_counts none = {0};
    (void)wait_decide(&wait, now_ns, &none);
    make_active(&wait, 100);
    cr_expect_eq(wait_decide(&wait, now_ns, &none).completions, 50);
    cr_expect_eq(wait_decide(&wait, now_ns + 5000 * US, &none).completions, 50, "the window before counts");
    cr_expect_eq(wait_decide(&wait, now_ns + 10000 * US, &none).completions, 1);
    uint32_t stamp = 0;
    wait.window = UINT32_MAX;
    (void)wait_decide(&wait, now_ns + 20000 * US, &none);
    cr_expect_neq(wait.window, 0, "a new client's stamp is never the window's");
    wait_client_active(&wait, &stamp);
    cr_expect_eq(wait.active_now, 1);
}

/* ---- the simulation ---- */

enum { CLIENTS_MAX = 1024 };

/* Costs in nanoseconds of CPU; one core for the gateway, one for the backend. */
struct world {
    uint32_t clients;
    bool is_open;          /* arrivals come by themselves, each on a client of its own, rather than behind the client's last reply */
    uint64_t interval_ns;  /* open: mean time between arrivals */
    uint64_t think_ns;     /* closed: from a reply to the next command, on average */
    uint64_t iteration_ns; /* gateway: one iteration */
    uint64_t command_ns;   /* gateway: one command, both ways */
    uint64_t batch_ns;     /* backend: one batch */
    uint64_t operation_ns; /* backend: one command */
    uint64_t duration_ns;
    uint32_t cpus_busy_permille; /* of the machine that the gateway shares with others */
};

struct outcome {
    double cpu_ns_per_operation; /* gateway and backend */
    double latency_ns;           /* mean, from the command's arrival at the gateway to its reply */
    double operations_per_second;
    uint64_t batches;
};

/* A heap would be more than this needs: the next arrival of every client, looked for one by one. */
static uint64_t arrives_ns[CLIENTS_MAX];
static uint64_t arrived_ns[CLIENTS_MAX];
static uint8_t is_out[CLIENTS_MAX]; /* its command is at the backend */
static uint32_t stamps[CLIENTS_MAX];

static uint64_t draw_ns(struct rng *rng, uint64_t mean_ns) { return mean_ns / 2 + rng_next(rng) % (mean_ns + 1); }

static uint64_t next_arrival(const struct world *world, uint32_t *count, uint64_t until_ns)
{
    uint64_t first = UINT64_MAX;
    *count = 0;
    for (uint32_t i = 0; i < world->clients; i++) {
        if (is_out[i])
            continue;
        first = arrives_ns[i] < first ? arrives_ns[i] : first;
        *count += arrives_ns[i] <= until_ns;
    }
    return first;
}

/* When `wanted` arrivals are there, no later than limit_ns. */
static uint64_t wait_for_arrivals(const struct world *world, uint64_t now_ns, uint32_t wanted, uint64_t limit_ns)
{
    uint32_t count;
    for (uint64_t at = now_ns; at < limit_ns; at += 2 * US) {
        (void)next_arrival(world, &count, at);
        if (count >= wanted)
            return at;
    }
    return limit_ns;
}

/* When the core runs again: with a wait as it decides, else at the next arrival or reply. */
static uint64_t wakes_at_ns(const struct world *world, const struct wait_decision *decision, uint32_t sends, uint64_t now_ns, uint64_t replies_at_ns)
{
    uint32_t there;
    uint64_t next_ns = next_arrival(world, &there, now_ns);
    if (replies_at_ns != 0 && replies_at_ns < next_ns)
        next_ns = replies_at_ns;
    if (decision->wait_ns > 0)
        next_ns = wait_for_arrivals(world, now_ns, decision->completions - sends, now_ns + decision->wait_ns);
    return next_ns > now_ns ? next_ns : now_ns;
}

static struct outcome simulate(const struct world *world, const struct wait_settings *settings, uint64_t seed)
{
    struct rng rng = {.state = seed};
    struct wait wait;
    struct outcome outcome = {0};
    uint64_t now_ns = 0, run_ns = 0, backend_ns = 0, measured_ns = 0, measured_run_ns = 0, operations = 0, latency_ns = 0;
    uint64_t replies_at_ns = 0; /* of the batch at the backend; 0: none */
    uint32_t waiting = 0;
    wait_init(&wait, settings, 0);
    memset(is_out, 0, sizeof(is_out));
    memset(stamps, 0, sizeof(stamps));
    for (uint32_t i = 0; i < world->clients; i++)
        arrives_ns[i] = draw_ns(&rng, world->is_open ? world->interval_ns * world->clients : world->think_ns);
    while (now_ns < world->duration_ns) {
        struct wait_counts counts = {0};
        uint32_t arrivals = 0;
        uint64_t work_ns = world->iteration_ns;
        if (replies_at_ns != 0 && replies_at_ns <= now_ns) {
            for (uint32_t i = 0; i < world->clients; i++) {
                if (!is_out[i])
                    continue;
                is_out[i] = 0;
                operations++;
                latency_ns += now_ns - arrived_ns[i];
                work_ns += world->command_ns / 2;
                arrives_ns[i] = world->is_open ? arrived_ns[i] + draw_ns(&rng, world->interval_ns * world->clients) : now_ns + draw_ns(&rng, world->think_ns);
                counts.sends++;
            }
            waiting = 0;
            replies_at_ns = 0;
        }
        if (replies_at_ns == 0) {
            for (uint32_t i = 0; i < world->clients; i++) {
                if (arrives_ns[i] > now_ns)
                    continue;
                is_out[i] = 1;
                arrived_ns[i] = arrives_ns[i];
                wait_client_active(&wait, &stamps[i]);
                arrivals++;
                waiting++;
                work_ns += world->command_ns / 2;
            }
            if (arrivals > 0) {
                outcome.batches++;
                uint64_t busy_ns = world->batch_ns + arrivals * world->operation_ns;
                backend_ns += busy_ns;
                replies_at_ns = now_ns + work_ns + busy_ns;
            }
        }
        now_ns += work_ns;
        run_ns += work_ns;
        counts.waiting = waiting;
        if (wait_period_is_over(&wait, now_ns)) {
            const struct wait_time time = {.passed_ns = now_ns - measured_ns, .run_ns = run_ns - measured_run_ns, .cpus_busy_permille = world->cpus_busy_permille};
            wait_measure(&wait, now_ns, &time);
            measured_ns = now_ns;
            measured_run_ns = run_ns;
        }
        const struct wait_decision decision = wait_decide(&wait, now_ns, &counts);
        now_ns = wakes_at_ns(world, &decision, counts.sends, now_ns, replies_at_ns);
    }
    cr_assert_gt(operations, 0);
    outcome.cpu_ns_per_operation = (double)(run_ns + backend_ns) / (double)operations;
    outcome.latency_ns = (double)latency_ns / (double)operations;
    outcome.operations_per_second = (double)operations * 1e9 / (double)now_ns;
    return outcome;
}

static const struct world base = {.iteration_ns = 6000, .command_ns = 6000, .batch_ns = 6000, .operation_ns = 2000, .duration_ns = UINT64_C(400000000)};

static struct outcome run_closed(uint32_t clients, uint64_t think_ns, uint32_t cpus_busy_permille, const struct wait_settings *settings, uint64_t seed)
{
    struct world world = base;
    world.clients = clients;
    world.think_ns = think_ns;
    world.cpus_busy_permille = cpus_busy_permille;
    return simulate(&world, settings, seed);
}

static struct outcome run_open(uint64_t interval_ns, uint32_t cpus_busy_permille, const struct wait_settings *settings, uint64_t seed)
{
    struct world world = base;
    world.clients = 200;
    world.is_open = true;
    world.interval_ns = interval_ns;
    world.cpus_busy_permille = cpus_busy_permille;
    return simulate(&world, settings, seed);
}

static const struct wait_settings no_wait = {.mode = WAIT_OFF};

/* The CPUs are all busy: what the gateway and the backend save others get (here: nobody). */
Test(wait, simulated_crowd_on_busy_cpus_costs_less_with_the_wait)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const struct outcome without = run_closed(200, 5000 * US, 1000, &no_wait, seed);
        const struct outcome with = run_closed(200, 5000 * US, 1000, &automatic, seed);
        cr_expect_lt(with.cpu_ns_per_operation, without.cpu_ns_per_operation * 0.75, "%.0f, %.0f", with.cpu_ns_per_operation, without.cpu_ns_per_operation);
        cr_expect_lt(with.batches, without.batches / 4);
        cr_expect_leq(with.latency_ns, without.latency_ns + 2.1 * (double)MAX_NS);
    }
}

/* CPUs have time left and so has the core: latency is all that counts. */
Test(wait, simulated_core_with_time_to_spare_never_waits)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        for (uint64_t interval_ns = 30 * US; interval_ns <= 400 * US; interval_ns *= 3) {
            const struct outcome without = run_open(interval_ns, 500, &no_wait, seed);
            const struct outcome with = run_open(interval_ns, 500, &automatic, seed);
            cr_expect_eq(with.batches, without.batches);
            cr_expect_float_eq(with.latency_ns, without.latency_ns, 1);
        }
        const struct outcome alone = run_closed(1, 20 * US, 1000, &automatic, seed);
        const struct outcome alone_without = run_closed(1, 20 * US, 1000, &no_wait, seed);
        cr_expect_float_eq(alone.latency_ns, alone_without.latency_ns, 1, "a client alone has nobody to wait for");
    }
}

/* A core of its own that is nearly used up: the wait gives it room, and takes back what it does not need. */
Test(wait, simulated_core_at_its_limit_keeps_its_throughput)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const struct outcome without = run_closed(200, 2000 * US, 0, &no_wait, seed);
        const struct outcome with = run_closed(200, 2000 * US, 0, &automatic, seed);
        cr_expect_leq(with.cpu_ns_per_operation, without.cpu_ns_per_operation);
        cr_expect_gt(with.operations_per_second, without.operations_per_second * 0.8, "%.0f, %.0f", with.operations_per_second, without.operations_per_second);
    }
}

Test(wait, simulated_latency_never_grows_by_more_than_a_wait_each_way)
{
    for (uint64_t interval_ns = 30 * US; interval_ns <= 400 * US; interval_ns *= 2) {
        const struct outcome without = run_open(interval_ns, 1000, &no_wait, 7);
        const struct outcome with = run_open(interval_ns, 1000, &automatic, 7);
        cr_expect_leq(with.latency_ns, without.latency_ns + 2.1 * (double)MAX_NS);
        cr_expect_leq(with.cpu_ns_per_operation, without.cpu_ns_per_operation * 1.02);
    }
}
