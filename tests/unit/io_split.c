/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "unit/unit.h"

#include "gguf_build.h"
#include "io/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/ingle-split-XXXXXX";

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

static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                    "m-00003-of-00003.gguf"};

static int drop_dir(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        unlink(in_dir(names[i]));
    return rmdir(dir);
}

struct shard {
    int no, count, total; /* total < 0: no split.tensors.count */
    const char *tensor;   /* NULL: none */
    float value;
};

/* Shard numbers are u16 and the total is i32, as the usual tools write them. */
static void write_shard(const char *path, struct shard s)
{
    struct gb b = {0};
    gb_head(&b, s.tensor != NULL, s.total < 0 ? 2 : 3);
    gb_key(&b, "split.no", 2);
    gb_bytes(&b, &(uint16_t){(uint16_t)s.no}, 2);
    gb_key(&b, "split.count", 2);
    gb_bytes(&b, &(uint16_t){(uint16_t)s.count}, 2);
    if (s.total >= 0) {
        gb_key(&b, "split.tensors.count", 5);
        gb_u32(&b, (uint32_t)s.total);
    }
    if (s.tensor)
        gb_tensor1(&b, s.tensor, 1, 0, 0);
    gb_pad(&b, 32);
    gb_bytes(&b, &s.value, s.tensor ? 4 : 0);
    gb_write(&b, path);
    gb_free(&b);
}

static void write_good(void)
{
    write_shard(in_dir(names[0]), (struct shard){0, 3, 2, NULL, 0});
    write_shard(in_dir(names[1]), (struct shard){1, 3, -1, "t.one", 1});
    write_shard(in_dir(names[2]), (struct shard){2, 3, -1, "t.two", 2});
}

static void check_good(const char *path)
{
    struct io_file *f;
    struct err err;
    float v;
    if (io_open(&f, path, NULL, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(io_n_tensors(f), 2);
    assert_int_equal(io_meta_count(io_metadata(f)), 3);
    const struct io_tensor *t = io_tensor_find(f, "t.two");
    assert_int_equal(t->file, 2);
    assert_int_equal(io_read(f, t, 0, &v, 4, NULL), INGLE_OK);
    assert_true(v == 2);
    t = io_tensor_find(f, "t.one");
    assert_int_equal(t->file, 1);
    memcpy(&v, io_mapped(f, t), 4);
    assert_true(v == 1);
    io_close(f);
}

static void shards_make_one_model(void **state)
{
    (void)state;
    write_good();
    check_good(in_dir(names[0]));
}

/* A download cache holds links to files that are named by their hash. */
static void links_keep_their_own_names(void **state)
{
    (void)state;
    write_good();
    for (int i = 0; i < 3; i++) {
        char blob[16];
        snprintf(blob, sizeof blob, "blob%d", i);
        assert_int_equal(rename(in_dir(names[i]), in_dir(blob)), 0);
        assert_int_equal(symlink(blob, in_dir(names[i])), 0);
    }
    check_good(in_dir(names[0]));
    for (int i = 0; i < 3; i++) {
        char blob[16];
        snprintf(blob, sizeof blob, "blob%d", i);
        unlink(in_dir(blob));
        unlink(in_dir(names[i]));
    }
}

static void refuses(const char *name, ingle_status status, const char *says)
{
    struct io_file *f = NULL;
    struct err err = {0};
    const ingle_status s = io_open(&f, in_dir(name), NULL, &err);
    if (s != status || !strstr(err.msg, says))
        fail_msg("status %d: %s", (int)s, err.msg);
    assert_non_null(strstr(err.msg, dir));
    assert_null(f);
}

static void any_other_shard_is_refused_with_the_right_name(void **state)
{
    (void)state;
    write_good();
    refuses(names[1], INGLE_ARG, "is part 2 of a split model: open '");
    refuses(names[1], INGLE_ARG, "m-00001-of-00003.gguf'");
    refuses(names[2], INGLE_ARG, "is part 3");
}

static void a_missing_shard_is_named(void **state)
{
    (void)state;
    write_good();
    unlink(in_dir(names[2]));
    refuses(names[0], INGLE_NOTFOUND, "m-00003-of-00003.gguf");
}

static void shards_must_agree(void **state)
{
    (void)state;
    write_good();
    write_shard(in_dir(names[1]), (struct shard){2, 3, -1, "t.one", 1});
    refuses(names[0], INGLE_FORMAT, "says split.no 2 of split.count 3 where 1 of 3 is needed");
    write_shard(in_dir(names[1]), (struct shard){1, 4, -1, "t.one", 1});
    refuses(names[0], INGLE_FORMAT, "says split.no 1 of split.count 4 where 1 of 3 is needed");
    write_shard(in_dir(names[1]), (struct shard){1, 3, -1, NULL, 1});
    refuses(names[0], INGLE_FORMAT, "key 'split.tensors.count' is 2, but the 3 files have 1");
    write_shard(in_dir(names[1]), (struct shard){1, 3, -1, "t.two", 1});
    refuses(names[0], INGLE_FORMAT, "tensor 't.two' is there twice");
    struct gb b = {0};
    gb_head(&b, 0, 0);
    gb_write(&b, in_dir(names[1]));
    refuses(names[0], INGLE_FORMAT, "says split.no -1 of split.count 0");
    b.n = 10;
    gb_write(&b, in_dir(names[1]));
    refuses(names[0], INGLE_FORMAT, "m-00002-of-00003.gguf: tensor count at byte 8 needs 8 bytes");
    gb_free(&b);
    write_good();
    write_shard(in_dir(names[0]), (struct shard){0, 2, 2, NULL, 0});
    refuses(names[0], INGLE_FORMAT,
            "is part 1 of 2, so its name must end in '-00001-of-00002.gguf'");
    write_shard(in_dir(names[0]), (struct shard){1, 3, 2, NULL, 0});
    refuses(names[0], INGLE_ARG, "is part 2 of a split model");
}

static void a_split_file_needs_its_name(void **state)
{
    (void)state;
    static const char *const odd[] = {"m.gguf", "m-0001-of-00003.gguf", "m-00001-of-00003.ggu",
                                      "m-00002-of-00003.gguf", "m-00001-of-00004.gguf"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        write_shard(in_dir(odd[i]), (struct shard){0, 3, 2, NULL, 0});
        refuses(odd[i], INGLE_FORMAT,
                "is part 1 of 3, so its name must end in '-00001-of-00003.gguf'");
        unlink(in_dir(odd[i]));
    }
}

static void memory_has_no_siblings(void **state)
{
    (void)state;
    struct gb b = {0};
    struct io_file *f;
    struct err err;
    gb_head(&b, 0, 1);
    gb_kv_u32(&b, "split.count", 3);
    assert_int_equal(io_open_memory(&f, "m-00001-of-00003.gguf", b.at, b.n, NULL, &err),
                     INGLE_UNSUP);
    assert_non_null(strstr(err.msg, "cannot be read from memory"));
    gb_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_make_one_model),
        cmocka_unit_test(links_keep_their_own_names),
        cmocka_unit_test(any_other_shard_is_refused_with_the_right_name),
        cmocka_unit_test(a_missing_shard_is_named),
        cmocka_unit_test(shards_must_agree),
        cmocka_unit_test(a_split_file_needs_its_name),
        cmocka_unit_test(memory_has_no_siblings),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
