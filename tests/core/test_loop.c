/*
 * The loop of a core: its phases, tasks, timers and end; and, with two threads, that a core which sleeps is woken in every mode of idling by every kind of doorbell.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/core/core_fixture.h"
#include "tests/core/loop_game.h"

TestSuite(loop, .timeout = 100);

enum { TRACE_MAX = 4096, PASSES_NS = 25 * 1000 * 1000 };

/* What happened, in order: one letter each. */
static char trace[TRACE_MAX];
static size_t trace_length;

static void note(char letter)
{
    if (trace_length < TRACE_MAX - 1)
        trace[trace_length++] = letter;
}

struct counted_task {
    struct task task;
    uint32_t runs, runs_max; /* enqueues itself until so many */
    char letter;
    struct counted_task *other; /* enqueued once by the first run */
};

static void run_counted(struct core *core, struct task *task)
{
    struct counted_task *counted = LIST_ENTRY(task, struct counted_task, task);
    note(counted->letter);
    if (++counted->runs < counted->runs_max)
        core_enqueue(core, task);
    if (counted->other != NULL)
        core_enqueue(core, &counted->other->task);
    counted->other = NULL;
}

static void note_flush(struct core *core)
{
    (void)core;
    note('F');
}

static void note_release(struct core *core)
{
    (void)core;
    note('R');
}

static bool after_iterations(void *context)
{
    uint32_t *left = context;
    return (*left)-- == 0;
}

static void run_iterations(struct core_fixture *fixture, uint32_t count)
{
    cr_assert(core_fixture_run(fixture, after_iterations, &count));
}

static void fire(struct timer *timer, void *context)
{
    (void)timer;
    (void)context;
    note('T');
}

Test(loop, phases_come_in_their_order)
{
    struct core_fixture fixture;
    struct counted_task task = {.letter = 'a', .runs_max = 1};
    struct timer timer;
    core_fixture_init(&fixture, 1);
    fixture.hooks.flush = note_flush;
    fixture.hooks.release = note_release;
    core_fixture_open(&fixture);
    task_init(&task.task, run_counted);
    timer_init(&timer, fire, NULL);
    timer_set(&fixture.core.wheel, &timer, fixture.core.now_ms);
    core_enqueue(&fixture.core, &task.task);
    run_iterations(&fixture, 2);
    cr_expect_str_eq(trace, "TaFRFR");
    cr_expect_eq(metric_read(fixture.core.metrics, METRIC_loop_iterations_total), 2);
    core_fixture_close(&fixture);
}

struct removing_task {
    struct task task;
    struct task *victim;
};

static void run_removing(struct core *core, struct task *task)
{
    (void)core;
    struct removing_task *removing = LIST_ENTRY(task, struct removing_task, task);
    note('r');
    if (list_is_linked(&removing->victim->node))
        list_remove(&removing->victim->node);
}

Test(loop, task_that_another_takes_out_of_the_queue_does_not_run_and_ends_no_round)
{
    struct core_fixture fixture;
    struct counted_task victim = {.letter = 'v', .runs_max = 1};
    struct counted_task other = {.letter = 'o', .runs_max = 3};
    struct removing_task removing = {.victim = &victim.task};
    core_fixture_init(&fixture, 1);
    fixture.hooks.flush = note_flush;
    core_fixture_open(&fixture);
    task_init(&victim.task, run_counted);
    task_init(&other.task, run_counted);
    task_init(&removing.task, run_removing);
    core_enqueue(&fixture.core, &removing.task);
    core_enqueue(&fixture.core, &other.task);
    core_enqueue(&fixture.core, &victim.task);
    run_iterations(&fixture, 1);
    cr_expect_str_eq(trace, "roooF");
    core_fixture_close(&fixture);
}

Test(loop, task_enqueued_twice_runs_once_and_from_a_task_in_the_same_iteration)
{
    struct core_fixture fixture;
    struct counted_task second = {.letter = 'b', .runs_max = 1};
    struct counted_task first = {.letter = 'a', .runs_max = 1, .other = &second};
    struct counted_task third = {.letter = 'c', .runs_max = 1};
    core_fixture_init(&fixture, 1);
    fixture.hooks.flush = note_flush;
    core_fixture_open(&fixture);
    task_init(&first.task, run_counted);
    task_init(&second.task, run_counted);
    task_init(&third.task, run_counted);
    core_enqueue(&fixture.core, &first.task);
    core_enqueue(&fixture.core, &first.task);
    core_enqueue(&fixture.core, &third.task);
    run_iterations(&fixture, 1);
    cr_expect_str_eq(trace, "acbF");
    core_fixture_close(&fixture);
}

/* A task that always has more to do neither starves the rest of the loop nor lets the core sleep. */
Test(loop, endless_task_is_bounded_in_each_iteration)
{
    struct core_fixture fixture;
    struct counted_task task = {.letter = 'a', .runs_max = 1000};
    core_fixture_init(&fixture, 1);
    fixture.hooks.flush = note_flush;
    core_fixture_open(&fixture);
    task_init(&task.task, run_counted);
    core_enqueue(&fixture.core, &task.task);
    run_iterations(&fixture, 10);
    cr_expect_eq(task.runs, 10 * 64);
    cr_expect_eq(metric_read(fixture.core.metrics, METRIC_loop_sleeps_total), 0);
    run_iterations(&fixture, 10);
    cr_expect_eq(task.runs, 1000);
    cr_expect(metric_read(fixture.core.metrics, METRIC_loop_sleeps_total) > 0);
    core_fixture_close(&fixture);
}

static bool has_traced(void *context)
{
    size_t *length = context;
    return trace_length >= *length;
}

Test(loop, timer_fires_after_its_time_and_wakes_the_core)
{
    static const enum config_idle modes[] = {IDLE_SLEEP, IDLE_ADAPTIVE, IDLE_SPIN};
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        struct core_fixture fixture;
        struct timer timer;
        size_t one = 1;
        trace_length = 0;
        core_fixture_init(&fixture, 1);
        fixture.config->cores.idle = modes[i];
        core_fixture_open(&fixture);
        timer_init(&timer, fire, NULL);
        uint64_t begin_ns = clock_monotonic_ns();
        timer_set(&fixture.core.wheel, &timer, begin_ns / 1000000 + 30);
        cr_expect(core_fixture_run(&fixture, has_traced, &one));
        uint64_t waited_ns = clock_monotonic_ns() - begin_ns;
        cr_expect_geq(waited_ns, 29 * UINT64_C(1000000), "%llu", (unsigned long long)waited_ns);
        uint64_t sleeps = metric_read(fixture.core.metrics, METRIC_loop_sleeps_total);
        cr_expect_eq(sleeps > 0, modes[i] != IDLE_SPIN, "%llu sleeps", (unsigned long long)sleeps);
        core_fixture_close(&fixture);
    }
}

Test(loop, sleep_without_a_timer_is_bounded)
{
    struct core_fixture fixture;
    core_fixture_init(&fixture, 1);
    core_fixture_open(&fixture);
    uint64_t begin_ns = clock_monotonic_ns();
    run_iterations(&fixture, 3);
    uint64_t waited_ns = clock_monotonic_ns() - begin_ns;
    cr_expect_geq(waited_ns, UINT64_C(250000000));
    cr_expect_lt(waited_ns, UINT64_C(5000000000));
    core_fixture_close(&fixture);
}

static bool is_busy_thrice(const struct core *core)
{
    return metric_read(core->metrics, METRIC_loop_iterations_total) < 4;
}

Test(loop, housekeeping_core_sleeps_where_data_cores_spin)
{
    for (int is_housekeeper = 0; is_housekeeper < 2; is_housekeeper++) {
        struct core_fixture fixture;
        core_fixture_init(&fixture, 1);
        fixture.config->cores.idle = IDLE_SPIN;
        core_fixture_open(&fixture);
        /* Its id is the only difference that the loop knows: behind the last data core. */
        if (is_housekeeper != 0)
            fixture.shared.data_cores = 0;
        run_iterations(&fixture, 2);
        cr_expect_eq(metric_read(fixture.core.metrics, METRIC_loop_sleeps_total) > 0, is_housekeeper != 0);
        fixture.shared.data_cores = 1;
        core_fixture_close(&fixture);
    }
}

Test(loop, busy_core_does_not_sleep)
{
    struct core_fixture fixture;
    core_fixture_init(&fixture, 1);
    fixture.hooks.is_busy = is_busy_thrice;
    core_fixture_open(&fixture);
    run_iterations(&fixture, 3);
    cr_expect_eq(metric_read(fixture.core.metrics, METRIC_loop_sleeps_total), 0);
    run_iterations(&fixture, 2);
    cr_expect_gt(metric_read(fixture.core.metrics, METRIC_loop_sleeps_total), 0);
    core_fixture_close(&fixture);
}

Test(loop, loop_ends_when_it_is_told_and_has_finished)
{
    struct core_fixture fixture;
    core_fixture_init(&fixture, 1);
    core_fixture_open(&fixture);
    run_iterations(&fixture, 0);
    cr_expect_eq(metric_read(fixture.core.metrics, METRIC_loop_iterations_total), 0);
    run_iterations(&fixture, 5);
    cr_expect_eq(metric_read(fixture.core.metrics, METRIC_loop_iterations_total), 5);
    core_fixture_close(&fixture);
}

Test(loop, wall_clock_follows_the_loop)
{
    struct core_fixture fixture;
    core_fixture_init(&fixture, 1);
    core_fixture_open(&fixture);
    run_iterations(&fixture, 1);
    uint64_t before_ns = clock_realtime_ns();
    uint64_t loop_ns = core_realtime_ns(&fixture.core);
    cr_expect(loop_ns <= before_ns + 1000000000 && before_ns <= loop_ns + UINT64_C(5000000000));
    core_fixture_close(&fixture);
}

static void count_completion(struct core *core, uint64_t user_data, int32_t result, uint32_t flags)
{
    (void)core;
    (void)flags;
    note(user_data >> 56 == (RING_OP_CONN_SEND | RING_OP_LINK_BIT) && result == 0 ? 'L' : (user_data & 0xff) == 5 ? 'C'
                                                                                                                  : '?');
}

Test(loop, completions_reach_the_handler_of_their_operation)
{
    struct core_fixture fixture;
    size_t two = 2;
    core_fixture_init(&fixture, 1);
    core_fixture_open(&fixture);
    fixture.core.completions[RING_OP_CONN_SEND] = count_completion;
    struct io_uring_sqe *sqe = ring_sqe(&fixture.core.ring);
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, ring_user_data_plain(RING_OP_CONN_SEND, 5));
    sqe = ring_sqe(&fixture.core.ring);
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, ring_user_data_plain(RING_OP_CONN_SEND | RING_OP_LINK_BIT, 0));
    sqe = ring_sqe(&fixture.core.ring);
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, ring_user_data_plain(RING_OP_ACCEPT, 5)); /* nobody's: dropped */
    cr_expect(core_fixture_run(&fixture, has_traced, &two));
    cr_expect_str_eq(trace, "CL");
    core_fixture_close(&fixture);
}

Test(loop, each_feature_of_the_ring_can_be_off)
{
    for (int off = 0; off < 6; off++) {
        struct core_fixture fixture;
        struct timer timer;
        size_t one = 1;
        trace_length = 0;
        core_fixture_init(&fixture, 1);
        bool *const fields[] = {&fixture.config->ring.multishot_accept, &fixture.config->ring.multishot_recv, &fixture.config->ring.direct_descriptors, &fixture.config->ring.defer_taskrun, &fixture.config->ring.min_wait};
        if (off < 5)
            *fields[off] = false;
        else
            fixture.config->cores.doorbell = DOORBELL_EVENTFD;
        core_fixture_open(&fixture);
        timer_init(&timer, fire, NULL);
        timer_set(&fixture.core.wheel, &timer, fixture.core.now_ms + 2);
        cr_expect(core_fixture_run(&fixture, has_traced, &one), "%d", off);
        core_fixture_close(&fixture);
    }
}

static bool has_passed(void *context) { return clock_monotonic_ns() > *(uint64_t *)context; }

/* By the kernel's minimum wait, or by number and time: either way the loop goes on, and a wait is never longer than it may be. */
Test(loop, wait_for_a_batch_that_never_comes_ends)
{
    for (int allowed = 0; allowed < 2; allowed++) {
        struct core_fixture fixture;
        core_fixture_init(&fixture, 1);
        fixture.config->ring.min_wait = allowed != 0;
        fixture.config->cores.wait = (struct wait_settings){.mode = WAIT_FIXED, .completions = 32, .wait_ns = 300000};
        core_fixture_open(&fixture);
        uint64_t end_ns = clock_monotonic_ns() + 20 * 1000 * 1000;
        cr_assert(core_fixture_run(&fixture, has_passed, &end_ns));
        cr_expect_gt(metric_read(fixture.core.metrics, METRIC_loop_batch_waits_total), 0);
        core_fixture_close(&fixture);
    }
}

Test(loop, messages_reach_cores_that_wait_for_batches_without_a_doorbell)
{
    const struct wait_settings wait = {.mode = WAIT_FIXED, .completions = 1000, .wait_ns = 300000};
    struct game_result result = play_game_waiting(IDLE_ADAPTIVE, DOORBELL_MSG_RING, 0, &wait);
    cr_assert_not(result.has_failed, "%s", result.error);
    cr_expect_geq(result.taken_min, ROUND_TRIPS - 1);
    cr_expect_eq(result.doorbells, 0);
    cr_expect_eq(result.sleeps, 0);
}

Test(loop, core_without_memory_for_its_buffers_says_so)
{
    struct core_fixture fixture;
    char error[256] = "";
    core_fixture_init(&fixture, 1);
    fixture.config->limits.rx_buffers_per_core = 64;
    fixture.config->limits.rx_buffer_bytes = 1 << 21; /* larger than the whole arena */
    fixture.config->limits.arena_bytes_per_core = 1 << 20;
    cr_expect_neq(core_open(&fixture.core, 0, fixture.config, &fixture.shared, error, sizeof(error)), STATUS_OK);
    cr_expect_not_null(strstr(error, "core 0: the receive buffers"), "%s", error);
    cr_expect_null(fixture.core.arena);
    mailbox_group_destroy(&fixture.shared.mailboxes);
    config_destroy(&fixture.config);
}

/* ---- two cores ---- */

static void expect_game(enum config_idle idle, enum config_doorbell doorbell, uint32_t pause_us)
{
    struct game_result result = play_game(idle, doorbell, pause_us);
    cr_assert_not(result.has_failed, "idle %d doorbell %d: %u taken, %s", idle, doorbell, result.taken_min, result.error);
    cr_expect_geq(result.taken_min, (uint32_t)ROUND_TRIPS - 1);
    /* Every wake-up that is lost costs up to 100 ms. Two that spin on fewer CPUs than two wait for each other's time slice instead. */
    if (idle != IDLE_SPIN)
        cr_expect_lt(result.took_ns, 2 * ROUND_TRIPS * ((uint64_t)pause_us * 1000 + PASSES_NS), "idle %d doorbell %d: %llu ms", idle, doorbell,
            (unsigned long long)(result.took_ns / 1000000));
    if (idle == IDLE_SPIN)
        cr_expect(result.sleeps == 0 && result.doorbells == 0);
    if (idle == IDLE_SLEEP)
        cr_expect(result.sleeps > ROUND_TRIPS && result.doorbells > 0, "%llu sleeps, %llu doorbells", (unsigned long long)result.sleeps, (unsigned long long)result.doorbells);
}

Test(loop, sleeping_core_is_woken_by_a_message_to_its_ring)
{
    expect_game(IDLE_SLEEP, DOORBELL_MSG_RING, 0);
    expect_game(IDLE_SLEEP, DOORBELL_AUTO, 2000);
}

Test(loop, sleeping_core_is_woken_by_its_eventfd)
{
    expect_game(IDLE_SLEEP, DOORBELL_EVENTFD, 0);
    expect_game(IDLE_SLEEP, DOORBELL_EVENTFD, 2000);
}

Test(loop, adaptive_core_is_woken_or_sees_the_message)
{
    expect_game(IDLE_ADAPTIVE, DOORBELL_MSG_RING, 0);
    expect_game(IDLE_ADAPTIVE, DOORBELL_EVENTFD, 0);
    expect_game(IDLE_ADAPTIVE, DOORBELL_MSG_RING, 2000);
}

Test(loop, spinning_core_sees_the_message_and_needs_no_doorbell)
{
    expect_game(IDLE_SPIN, DOORBELL_MSG_RING, 0);
    expect_game(IDLE_SPIN, DOORBELL_EVENTFD, 0);
}
