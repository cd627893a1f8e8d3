/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "unit/unit.h"

#include "server/guard.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/ingle-guard-XXXXXX";

/* A process that dies with these requests at work; what the last one was told. */
static int die_with(const char *const *request, int n)
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        struct guard *g;
        int last = -3;
        if (guard_open(&g, folder, NULL))
            _exit(100);
        for (int i = 0; i < n; i++)
            last = guard_enter(g, "", "/chat", request[i], strlen(request[i]));
        _exit(last == -2 ? 2 : last >= 0 ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_third_time_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"bad"}, *const both[] = {"good", "bad"};
    struct guard *g, *other;
    struct err err;
    assert_int_equal(die_with(bad, 1), 1);
    assert_int_equal(die_with(both, 2), 1);
    assert_int_equal(die_with(both, 2), 2);
    assert_int_equal(guard_open(&g, folder, &err), INGLE_OK);
    assert_int_equal(guard_open(&other, folder, &err), INGLE_LIMIT);
    assert_int_equal(guard_enter(g, "", "/chat", "bad", 3), -2);
    assert_int_equal(guard_enter(g, "", "/chat", "good", 4), -2); /* it was there twice, too */
    const int fresh = guard_enter(g, "", "/chat", "fresh", 5);
    assert_true(fresh >= 0);
    guard_leave(g, fresh);
    guard_leave(g, -1);
    guard_close(g);
}

static void one_that_ends_well_is_forgiven(void **state)
{
    (void)state;
    static const char *const odd[] = {"odd"};
    struct guard *g;
    assert_int_equal(die_with(odd, 1), 1);
    assert_int_equal(guard_open(&g, folder, NULL), INGLE_OK);
    guard_leave(g, guard_enter(g, "", "/chat", "odd", 3));
    guard_close(g);
    assert_int_equal(die_with(odd, 1), 1);
    assert_int_equal(die_with(odd, 1), 1);
    /* Stopping on purpose is no crash. */
    assert_int_equal(guard_open(&g, folder, NULL), INGLE_OK);
    assert_int_equal(guard_enter(g, "", "/chat", "odd", 3), -2);
    assert_true(guard_enter(g, "", "/chat", "calm", 4) >= 0);
    guard_pardon(g);
    guard_close(g);
    assert_int_equal(guard_open(&g, folder, NULL), INGLE_OK);
    assert_true(guard_enter(g, "", "/chat", "calm", 4) >= 0);
    guard_close(g);
}

static void many_requests_fit(void **state)
{
    (void)state;
    struct guard *g;
    assert_int_equal(guard_open(&g, folder, NULL), INGLE_OK);
    for (int i = 0; i < 2000; i++)
        assert_true(guard_enter(g, "", "/chat", &i, sizeof i) >= -1);
    guard_close(g);
}

static void damage_starts_anew(void **state)
{
    (void)state;
    struct guard *g;
    char path[64];
    snprintf(path, sizeof path, "%s/requests", folder);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(guard_open(&g, folder, NULL), INGLE_OK);
    guard_close(g);
    struct stat is;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("nonsense", f);
    fclose(f);
    assert_int_equal(guard_open(&g, folder, NULL), INGLE_ARG); /* it is somebody's */
    assert_int_equal(stat(path, &is), 0);
    assert_int_equal(is.st_size, 8);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(guard_open(&g, folder, NULL), INGLE_OK);
    assert_true(guard_enter(g, "", "/chat", "bad", 3) >= 0);
    guard_close(g);
    unlink(path);
    rmdir(folder);
    assert_int_equal(guard_open(&g, "/dev/null/x", NULL), INGLE_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_third_time_is_refused),
        cmocka_unit_test(one_that_ends_well_is_forgiven),
        cmocka_unit_test(many_requests_fit),
        cmocka_unit_test(damage_starts_anew),
    };
    if (!mkdtemp(folder))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
