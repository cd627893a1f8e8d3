/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and writing when memory runs out at any point: an ordinary error, and nothing is
 * left behind. */
#define _DEFAULT_SOURCE
#include "unit/unit.h"

#include <stdbool.h>

#include "base/json.h"
#include "gguf_build.h"
#include "io/io.h"
#include "unit/mem_fail.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/ingle-mem-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static int drop_dir(void **state)
{
    (void)state;
    static const char *const left[] = {"a-00001-of-00002.gguf", "a-00002-of-00002.gguf",
                                       "w.safetensors", "b.safetensors",
                                       "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        unlink(in_dir(left[i]));
    return rmdir(dir); /* fails when a temporary file was left behind */
}

typedef ingle_status attempt_fn(struct err *err);

/* Lets allocation 1, 2, 3, ... fail until the attempt needs fewer. */
static void until_it_works(attempt_fn *attempt, int at_least)
{
    int n = 1;
    for (;; n++) {
        struct err err = {0};
        mem_fail_in = n;
        const ingle_status s = attempt(&err);
        const bool failed = mem_fail_in == 0;
        mem_fail_in = 0;
        if (!failed) {
            if (s)
                fail_msg("%s", err.msg);
            break;
        }
        assert_int_equal(s, INGLE_NOMEM);
        assert_int_equal(err.status, INGLE_NOMEM);
        assert_true(err.msg[0] != 0);
    }
    assert_true(n > at_least);
}

static struct gb good;

static ingle_status open_memory(struct err *err)
{
    struct io_file *f;
    ingle_status s = io_open_memory(&f, "m", good.at, good.n, NULL, err);
    if (!s)
        io_close(f);
    return s;
}

static ingle_status open_split(struct err *err)
{
    struct io_file *f;
    ingle_status s = io_open(&f, in_dir("a-00001-of-00002.gguf"), NULL, err);
    if (!s)
        io_close(f);
    return s;
}

static ingle_status open_dir(struct err *err)
{
    struct io_file *f;
    ingle_status s = io_open(&f, dir, NULL, err);
    if (!s)
        io_close(f);
    return s;
}

static ingle_status write_file(struct err *err)
{
    static const float v[64];
    const uint64_t n = 64;
    struct io_writer *w;
    ingle_status s = io_writer_create(&w, in_dir("w.safetensors"), OUTPUT_ANY, err);
    if (s)
        return s;
    for (int i = 0; i < 12 && !s; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        s = io_writer_add(w, name, QUANT_F32, 1, &n, v, sizeof v, err);
    }
    const ingle_status closed = io_writer_close(w, s ? NULL : err);
    return s ? s : closed;
}

static ingle_status check_json(struct err *err)
{
    static const char text[] = "{\"a\":[[{\"b\":1,\"c\":2}]],\"d\":12345678901234567890123}";
    return json_gate(text, strlen(text), NULL, err);
}

static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    gb_good(&good);
    until_it_works(open_memory, 8);
    gb_free(&good);

    for (uint32_t i = 0; i < 2; i++) {
        struct gb b = {0};
        gb_head(&b, 1, 2);
        gb_kv_u32(&b, "split.no", i);
        gb_kv_u32(&b, "split.count", 2);
        gb_tensor1(&b, i ? "t.one" : "t.two", 1, 0, 0);
        gb_pad(&b, 32);
        gb_u32(&b, 0);
        gb_write(&b, in_dir(i ? "a-00002-of-00002.gguf" : "a-00001-of-00002.gguf"));
        gb_free(&b);
    }
    until_it_works(open_split, 12);

    struct gb b = {0};
    gb_str(&b, "{\"__metadata__\":{\"a\":\"b\"},\"t\":{\"dtype\":\"I8\",\"shape\":[2],\"data_"
               "offsets\":[0,2]}}");
    gb_bytes(&b, "ab", 2);
    gb_write(&b, in_dir("b.safetensors"));
    b.n = 0;
    gb_bytes(&b, "{\"weight_map\":{\"t\":\"b.safetensors\"}}", 36);
    gb_write(&b, in_dir("model.safetensors.index.json"));
    gb_free(&b);
    until_it_works(open_dir, 10);
    until_it_works(write_file, 6);
    until_it_works(check_json, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
