#include "core/clock.h"

#include <criterion/criterion.h>
#include <time.h>

TestSuite(clock);

Test(clock, monotonic_time_never_goes_back_and_passes)
{
    uint64_t start = clock_monotonic_ns();
    uint64_t last = start;
    for (int i = 0; i < 100000; i++) {
        uint64_t now = clock_monotonic_ns();
        cr_assert_geq(now, last);
        last = now;
    }
    struct timespec pause = {.tv_nsec = 2000000};
    nanosleep(&pause, NULL);
    cr_assert_geq(clock_monotonic_ns() - start, UINT64_C(2000000));
}

Test(clock, real_time_is_the_wall_clock_in_nanoseconds)
{
    uint64_t now_s = clock_realtime_ns() / UINT64_C(1000000000);
    uint64_t libc_s = (uint64_t)time(NULL);
    cr_assert(now_s >= libc_s - 1 && now_s <= libc_s + 1);
}
