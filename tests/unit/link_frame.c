/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of workers: what is written is read again; each field outside its limit is refused by a
 * text that names it; two ends that differ in anything that results depend on do not agree;
 * addresses and keys. */
#define _GNU_SOURCE
#include "unit/unit.h"

#include "link/link.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <math.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 2, PAIRS = 4, USED = 2, HIDDEN = 3 };
static const struct link_shape shape = {
    .n_layers = 5, .n_experts = 8, .hidden = HIDDEN, .most_rows = 16, .most_pairs = 32};
static const struct link_head eval_head = {LINK_EVAL,     4, ROWS, PAIRS, LINK_SUM | LINK_SILU, 77,
                                           1234567890123u};

static size_t write_eval(uint8_t *payload, const struct link_head *h)
{
    static const uint32_t row[PAIRS] = {0, 1, 0, 1}, expert[PAIRS] = {1, 1, 3, 7};
    const float weight[PAIRS] = {1, 2, 3, 4}, x[ROWS * HIDDEN] = {1, 2, 3, 4, 5, 6};
    struct link_eval e;
    uint8_t *at = payload + LINK_EVAL_BYTES;
    link_eval_begin(payload, h->flags & LINK_SUM ? USED : 0, 2.5f);
    link_eval_lay(h, payload, &e);
    memcpy(at, row, sizeof row);
    memcpy(at + sizeof row, expert, sizeof expert);
    if (h->flags & LINK_SUM)
        memcpy(at + 2 * sizeof row, weight, sizeof weight);
    memcpy(payload + (e.x - payload), x, sizeof x);
    return link_eval_bytes(h, &shape);
}

static void an_eval_goes_and_comes(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags <= LINK_FLAGS; flags++) {
        struct link_head h = eval_head, got;
        struct link_eval e;
        uint8_t head[LINK_HEAD], payload[256];
        h.flags = flags;
        const size_t n = write_eval(payload, &h);
        link_head_write(&h, payload, n, head);
        assert_int_equal(link_head_read(head, sizeof head, payload, n, &shape, &got, NULL),
                         INGLE_OK);
        assert_true(got.kind == LINK_EVAL && got.layer == 4 && got.n_rows == ROWS &&
                    got.n_pairs == PAIRS && got.flags == flags && got.step == 77 &&
                    got.tag == h.tag);
        assert_int_equal(link_eval_read(&got, &shape, payload, n, &e, NULL), INGLE_OK);
        float last;
        memcpy(&last, e.x + (ROWS * HIDDEN - 1) * sizeof last, sizeof last);
        assert_true(last == 6 && e.limit == 2.5f && link_u32(e.expert + 12) == 7 &&
                    (e.weight != NULL) == ((flags & LINK_SUM) != 0));
        assert_int_equal(e.n_used, flags & LINK_SUM ? USED : 0);
    }
}

/* The text of a refusal of a frame that is right but for its head as it is now. */
static const char *refusal(const struct link_head *h, const uint8_t *payload, size_t n,
                           const struct link_shape *s)
{
    static struct err err;
    struct link_head got;
    struct link_eval e;
    uint8_t head[LINK_HEAD];
    err.msg[0] = 0;
    link_head_write(h, payload, n, head);
    ingle_status st = link_head_read(head, sizeof head, payload, n, s, &got, &err);
    if (!st && got.kind == LINK_EVAL)
        st = link_eval_read(&got, s, payload, n, &e, &err);
    assert_int_equal(st, INGLE_FORMAT);
    return err.msg;
}

static void says(const char *text, const char *word)
{
    if (!strstr(text, word))
        fail_msg("'%s' does not say '%s'", text, word);
}

static void every_field_has_a_limit(void **state)
{
    (void)state;
    static const struct { size_t at; uint32_t v; const char *word;
    } heads[] = {{16, 5, "'layer' 5 outside 0 to 4"},
                 {20, 0, "'rows' 0"},
                 {20, 17, "'rows' 17 outside 1 to 16"},
                 {24, 33, "'pairs' 33 outside 1 to 32"},
                 {24, 0, "'pairs' 0"},
                 {28, 8, "'flags' 0x8"},
                 {20, 3, "the payload of EVAL has"},
                 {24, 5, "the payload of EVAL has"}};
    uint8_t payload[256];
    const size_t n = write_eval(payload, &eval_head);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct link_head h = eval_head;
        *(heads[i].at == 16   ? &h.layer
          : heads[i].at == 20 ? &h.n_rows
          : heads[i].at == 24 ? &h.n_pairs
                              : &h.flags) = heads[i].v;
        says(refusal(&h, payload, n, &shape), heads[i].word);
    }
    says(refusal(&eval_head, payload, n, NULL), "before HELLO");
    says(refusal(&(struct link_head){.kind = 99}, NULL, 0, &shape), "'kind' 99 outside 1 to ");
    says(refusal(&(struct link_head){.kind = LINK_SHARE}, payload, 4, &shape),
         "the payload of SHARE has 4");
    says(refusal(&(struct link_head){.kind = LINK_CANCEL}, payload, 4, &shape),
         "the payload of CANCEL has 4");
    says(refusal(&(struct link_head){.kind = LINK_CANCEL}, NULL, 0, NULL), "comes before HELLO");
    says(refusal(&(struct link_head){.kind = LINK_STATS}, payload, 4, &shape),
         "the payload of STATS has 4");
    says(refusal(&(struct link_head){.kind = LINK_PLACE}, payload, 6, &shape),
         "the payload of PLACE has 6");
    says(refusal(&(struct link_head){.kind = LINK_HAVE}, payload, 200, &shape),
         "the payload of HAVE has 200");
    const struct link_head shared = {
        .kind = LINK_EVAL, .n_rows = 2, .n_pairs = 4, .flags = LINK_SHARED};
    says(refusal(&shared, payload, 12, &shape), "the payload of shared rows has 12");
    memset(payload, 2, 8);
    says(refusal(&shared, payload, 8, &shape), "'slot'");
    (void)write_eval(payload, &eval_head);
    says(refusal(&(struct link_head){.kind = LINK_BYE}, payload, 4, &shape),
         "the payload of BYE has 4");
    says(refusal(&(struct link_head){.kind = LINK_HELLO}, payload, 4, &shape),
         "the payload of HELLO has 4");
    static const struct { size_t at; uint32_t v; const char *word;
    } payloads[] = {{16, 2, "'row' 2 of 2"},
                    {32, 8, "'expert' 8 of 8"},
                    {32, 2, "does not come behind"},
                    {20, 0, "does not come behind"},
                    {0, 3, "for 2 rows with 3 experts"},
                    {0, 65, "'experts a row' 65 outside 1 to 64"},
                    {4, 0x7f800000, "'limit'"},
                    {4, 0xbf800000, "'limit'"},
                    {4, 0x7fc00000, "'limit'"}};
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        (void)write_eval(payload, &eval_head);
        link_put_u32(payload + payloads[i].at, payloads[i].v);
        says(refusal(&eval_head, payload, n, &shape), payloads[i].word);
    }
}

/* No bit of a frame changes without being seen. */
static void a_flipped_bit_is_seen(void **state)
{
    (void)state;
    uint8_t head[LINK_HEAD], payload[256];
    struct link_head got;
    const size_t n = write_eval(payload, &eval_head);
    link_head_write(&eval_head, payload, n, head);
    for (size_t bit = 0; bit < 8 * (sizeof head + n); bit++) {
        uint8_t *byte = bit / 8 < sizeof head ? &head[bit / 8] : &payload[bit / 8 - sizeof head];
        *byte ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(link_head_read(head, sizeof head, payload, n, &shape, &got, NULL),
                         INGLE_FORMAT);
        *byte ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t k = 0; k < sizeof head; k++)
        assert_int_equal(link_head_read(head, k, payload, n, &shape, &got, NULL), INGLE_FORMAT);
    for (size_t k = 0; k < n; k++)
        assert_int_equal(link_head_read(head, sizeof head, payload, k, &shape, &got, NULL),
                         INGLE_FORMAT);
}

static void sizes_do_not_overflow(void **state)
{
    (void)state;
    const struct link_shape wide = {.n_layers = 1,
                                    .n_experts = 1,
                                    .hidden = LINK_MAX_WIDTH,
                                    .most_rows = LINK_MAX_ROWS,
                                    .most_pairs = LINK_MAX_PAIRS};
    const struct link_head h = {LINK_EVAL, 0, LINK_MAX_ROWS, LINK_MAX_PAIRS, 0, 0, 0};
    assert_true(link_eval_bytes(&h, &wide) == 0 && link_result_bytes(&h, &wide) == 0);
    /* 0 bytes are not their length */
    says(refusal(&h, (const uint8_t *)"", 0, &wide), "the rows of EVAL have more than");
}

static struct link_hello hello(void)
{
    return (struct link_hello){.version_min = 1,
                               .version_max = 1,
                               .arithmetic = 4,
                               .layout = 2,
                               .range = {true, 0, 0},
                               .form = 1,
                               .mark = 2,
                               .sum = 3,
                               .n_layers = 43,
                               .n_experts = 256,
                               .n_used = 6,
                               .hidden = 4096,
                               .width = 2048,
                               .most_rows = 512,
                               .most_pairs = 1024,
                               .threads = 8,
                               .slots = 100,
                               .budget_bytes = (uint64_t)20 << 30,
                               .numerics = "exact",
                               .family = "deepseek4",
                               .cpu = "avx2",
                               .engine = "0.1.0"};
}

static void a_hello_goes_and_comes(void **state)
{
    (void)state;
    uint8_t bytes[LINK_HELLO_BYTES];
    for (int all = 0; all < 2; all++) {
        struct link_hello h = hello(), got;
        h.range = all ? (struct link_range){true, 0, 0} : (struct link_range){false, 3, 9};
        link_hello_write(&h, bytes);
        assert_int_equal(link_hello_read(bytes, sizeof bytes, &got, NULL), INGLE_OK);
        assert_true(got.range.all == (all != 0) && got.range.to == h.range.to && got.form == 1 &&
                    got.sum == 3 && got.width == 2048 && got.budget_bytes == h.budget_bytes &&
                    strcmp(got.family, "deepseek4") == 0 && strcmp(got.engine, "0.1.0") == 0);
        assert_int_equal(link_hello_agree(&h, &got, NULL), INGLE_OK);
    }
    assert_non_null(memmem(bytes, sizeof bytes, "all", 4)); /* a word */
}

static void other_ends_are_refused(void **state)
{
    (void)state;
    struct err err;
    for (int i = 0; i < 12; i++) {
        static const char *const words[] = {"the protocol is 1 to 1 here, 2 to 2 there",
                                            "'deepseek4' here, 'gemma4' there",
                                            "'layers' is 43 here, 44 there",
                                            "'experts' is 256",
                                            "'experts a row'",
                                            "'hidden size'",
                                            "'width of an expert'",
                                            "hash of shapes",
                                            "hash of samples",
                                            "hash of all weights",
                                            "the numerics are 'exact' here, 'fast-wide' there",
                                            "arithmetic is 4"};
        const struct link_hello mine = hello();
        struct link_hello h = hello();
        uint32_t *const numbers[] = {&h.n_layers, &h.n_experts, &h.n_used, &h.hidden, &h.width};
        uint64_t *const hashes[] = {&h.form, &h.mark, &h.sum};
        if (i == 0)
            h.version_min = h.version_max = 2;
        else if (i == 1)
            strcpy(h.family, "gemma4");
        else if (i < 7)
            ++*numbers[i - 2];
        else if (i < 10)
            ++*hashes[i - 7];
        else if (i == 10)
            strcpy(h.numerics, "fast-wide");
        else
            h.arithmetic++;
        assert_int_equal(link_hello_agree(&mine, &h, &err), INGLE_UNSUP);
        says(err.msg, words[i]);
    }
    struct link_hello a = hello(), b = hello();
    b.sum = 0; /* not known: samples decide */
    assert_int_equal(link_hello_agree(&a, &b, NULL), INGLE_OK);
    a.range = (struct link_range){false, 0, 20};
    b.range = (struct link_range){false, 20, 43};
    assert_int_equal(link_hello_agree(&a, &b, &err), INGLE_UNSUP);
    says(err.msg, "no layer in common: 0:20 here, 20:43 there");
    b.range.from = 19;
    assert_int_equal(link_hello_agree(&a, &b, NULL), INGLE_OK);
}

static void hostile_hellos_are_refused(void **state)
{
    (void)state;
    static const struct { size_t at; uint32_t v; const char *word;
    } cases[] = {{0, 0x00010002, "'version'"},
                 {0, 0, "'version'"},
                 {12, 0x65787878, "neither 'all' nor 'some'"},
                 {16, 1, "'first layer' 1"},
                 {48, 0, "'layers' 0"},
                 {52, 4097, "'experts' 4097 outside 1 to 4096"},
                 {56, 65, "'experts a row' 65"},
                 {60, 0xffffffff, "'hidden'"},
                 {64, 0, "'width'"},
                 {68, 65537, "'rows' 65537"},
                 {72, 0xffffffff, "'pairs'"},
                 {76, 0, "'threads'"},
                 {96, 0x01010101, "printable"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct link_hello h = hello();
        struct link_hello got;
        struct err err;
        uint8_t bytes[LINK_HELLO_BYTES];
        link_hello_write(&h, bytes);
        link_put_u32(bytes + cases[i].at, cases[i].v);
        assert_int_equal(link_hello_read(bytes, sizeof bytes, &got, &err), INGLE_FORMAT);
        says(err.msg, cases[i].word);
    }
}

static void ranges_and_texts(void **state)
{
    (void)state;
    struct link_range r;
    char text[32];
    assert_int_equal(link_range_parse("all", &r, NULL), INGLE_OK);
    assert_true(r.all && link_range_has(&r, 7));
    assert_int_equal(link_range_parse("3:9", &r, NULL), INGLE_OK);
    assert_true(!r.all && !link_range_has(&r, 2) && link_range_has(&r, 3) &&
                link_range_has(&r, 8) && !link_range_has(&r, 9));
    link_range_text(&r, text, sizeof text);
    assert_string_equal(text, "3:9");
    static const char *const bad[] = {"",        "3",   "3:",    ":3",
                                      "3:3",     "4:3", "-1:3",  "3:9 ",
                                      "0:65537", "a:b", "1:2:3", "99999999999999999999:3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(link_range_parse(bad[i], &r, NULL), INGLE_ARG);
    char out[LINK_MAX_TEXT + 1];
    link_fail_text((const uint8_t *)"a\n\x1b[31m\xff", 8, out);
    assert_string_equal(out, "a??[31m?");
}

static void addresses(void **state)
{
    (void)state;
    static const struct { const char *text, *endpoint; bool near;
    } good[] = {{"127.evil.example:7", "tcp://127.evil.example:7", false},
                {"127.0.0.1.evil.example:7", "tcp://127.0.0.1.evil.example:7", false},
                {"127.9.9.9:7", "tcp://127.9.9.9:7", true},
                {"[0:0::1]:7", "tcp://[0:0::1]:7", true},
                {"[::ffff:127.0.0.1]:7", "tcp://[::ffff:127.0.0.1]:7", true},
                {"[::2]:7", "tcp://[::2]:7", false},
                {"127.0.0.1:4000", "tcp://127.0.0.1:4000", true},
                {"localhost:4000", "tcp://localhost:4000", true},
                {"[::1]:4000", "tcp://[::1]:4000", true},
                {"10.0.0.7:4000", "tcp://10.0.0.7:4000", false},
                {"box.lan:4000", "tcp://box.lan:4000", false},
                {"unix:/tmp/w", "ipc:///tmp/w", true}};
    static const char *const bad[] = {
        "",    "4000",     ":4000", "a:",   "a:b",          "a:65536", "a:-1",
        "a:0", "::1:4000", "unix:", "fd:3", "tcp://a:4000", "a:4000 "};
    struct link_address a;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(link_address_parse(good[i].text, false, &a, NULL), INGLE_OK);
        assert_string_equal(a.endpoint, good[i].endpoint);
        assert_int_equal(a.near, good[i].near);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(link_address_parse(bad[i], false, &a, NULL), INGLE_ARG);
    assert_int_equal(link_address_parse("127.0.0.1:0", true, &a, NULL), INGLE_OK);
    char text[16];
    struct err err;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    snprintf(text, sizeof text, "fd:%d", fd);
    assert_int_equal(link_address_parse(text, true, &a, &err), INGLE_ARG);
    says(err.msg, "does not listen");
    assert_true(bind(fd, (struct sockaddr *)&in, sizeof in) == 0 && listen(fd, 1) == 0);
    assert_int_equal(link_address_parse(text, true, &a, &err), INGLE_OK);
    assert_true(a.place == LINK_HANDED && a.fd == fd && a.near &&
                strncmp(a.endpoint, "tcp://127.0.0.1:", 16) == 0);
    close(fd);
    assert_int_equal(link_address_parse(text, true, &a, &err), INGLE_ARG);
    says(err.msg, "is no socket");
    assert_int_equal(link_address_parse("fd:x", true, &a, &err), INGLE_ARG);
}

static void keys(void **state)
{
    (void)state;
    char path[] = "/tmp/ingle-key-XXXXXX";
    uint8_t a[LINK_SECRET], b[LINK_SECRET], c[LINK_SECRET];
    struct err err;
    const int fd = mkstemp(path);
    const char digits[] = "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100\n";
    assert_true(write(fd, digits, sizeof digits - 1) == (ssize_t)sizeof digits - 1);
    assert_int_equal(link_secret_read(path, a, NULL), INGLE_OK);
    assert_true(a[0] == 0 && a[1] == 0x11 && a[16] == 0xff && a[31] == 0);
    link_secret_derive(a, "worker", b);
    link_secret_derive(a, "engine", c);
    assert_true(memcmp(b, c, sizeof b) != 0 && memcmp(a, b, sizeof b) != 0);
    assert_true(fchmod(fd, 0644) == 0);
    assert_int_equal(link_secret_read(path, a, &err), INGLE_ARG);
    says(err.msg, "others may read or write the key");
    assert_true(fchmod(fd, 0440) == 0); /* root's and of an own group: a secret that is mounted */
    assert_int_equal(link_secret_read(path, a, NULL), geteuid() ? INGLE_ARG : INGLE_OK);
    assert_true(fchmod(fd, 0600) == 0 && ftruncate(fd, 63) == 0);
    assert_int_equal(link_secret_read(path, a, &err), INGLE_FORMAT);
    says(err.msg, "64 hexadecimal digits");
    close(fd);
    unlink(path);
    assert_int_not_equal(link_secret_read(path, a, &err), INGLE_OK);
}

/* What the fuzz target starts from: each kind of message as it is now, behind a byte that says what
 * was agreed on (tests/fuzz/link.c). */
static void seeds_are_messages_of_each_kind(void **state)
{
    (void)state;
    static const char folder[] = "tests/fuzz/seeds/link";
    const struct link_shape small = {
        .n_layers = 4, .n_experts = 3, .hidden = 2, .most_rows = 16, .most_pairs = 64};
    enum { AGREED = 2, TEXT = 8 };
    unsigned kinds = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        char path[300];
        uint8_t bytes[4096];
        struct link_head h;
        struct err err;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f)
            continue;
        const size_t n = fread(bytes, 1, sizeof bytes, f);
        fclose(f);
        if (bytes[0] & TEXT)
            continue;
        assert_true(n > LINK_HEAD && n < sizeof bytes);
        if (link_head_read(bytes + 1, LINK_HEAD, bytes + 1 + LINK_HEAD, n - 1 - LINK_HEAD,
                           bytes[0] & AGREED ? &small : NULL, &h, &err))
            fail_msg("%s: %s", path, err.msg);
        kinds |= 1u << h.kind;
    }
    closedir(d);
    assert_int_equal(kinds, (2u << LINK_SHARE) - 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_eval_goes_and_comes),
        cmocka_unit_test(every_field_has_a_limit),
        cmocka_unit_test(a_flipped_bit_is_seen),
        cmocka_unit_test(sizes_do_not_overflow),
        cmocka_unit_test(a_hello_goes_and_comes),
        cmocka_unit_test(other_ends_are_refused),
        cmocka_unit_test(hostile_hellos_are_refused),
        cmocka_unit_test(ranges_and_texts),
        cmocka_unit_test(addresses),
        cmocka_unit_test(keys),
        cmocka_unit_test(seeds_are_messages_of_each_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
