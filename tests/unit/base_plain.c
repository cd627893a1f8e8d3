/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/mem.h"
#include "base/plain.h"
#include <string.h>

#define BYTES(text) text, sizeof text - 1

/* Decodes in pieces of `piece` bytes. */
static ingle_status decode(const char *bytes, size_t n, size_t piece, bool lax, struct str *out,
                           struct err *err)
{
    struct plain p;
    ingle_status st = INGLE_OK;
    plain_init(&p, "FILE", lax);
    for (size_t i = 0; !st && i < n; i += piece)
        st = plain_add(&p, out, bytes + i, n - i < piece ? n - i : piece, err);
    return st ? st : plain_end(&p, out, err);
}

static void forms_become_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } c[] = {
        {BYTES(""), ""},
        {BYTES("a"), "a"},
        {BYTES("Gr\xC3\xB6\xC3\x9F"
               "e \xE6\xBC\xA2 \xF0\x9F\x98\x80\r\n"),
         "Gr\xC3\xB6\xC3\x9F"
         "e \xE6\xBC\xA2 \xF0\x9F\x98\x80\r\n"},
        {BYTES("\xEF\xBB\xBF"
               "a\xC3\xB6"),
         "a\xC3\xB6"},
        {BYTES("\xEF\xBB\xBF"), ""},
        {BYTES("\xEF\xBB\xBF\xEF\xBB\xBF"), "\xEF\xBB\xBF"}, /* the second one is a character */
        {BYTES("\xEF\xBC\x81"), "\xEF\xBC\x81"},             /* it begins as the mark does */
        {BYTES("\xFF\xFE"
               "a\0\xF6\0=\xD8\0\xDE\r\0\n\0"),
         "a\xC3\xB6\xF0\x9F\x98\x80\r\n"},
        {BYTES("\xFE\xFF\0a\0\xF6\xD8=\xDE\0"), "a\xC3\xB6\xF0\x9F\x98\x80"},
        {BYTES("\xFF\xFE\0\0a\0\0\0\0\xF6\1\0"), "a\xF0\x9F\x98\x80"},
        {BYTES("\0\0\xFE\xFF\0\0\0a\0\1\xF6\0"), "a\xF0\x9F\x98\x80"},
        {BYTES("\xFF\xFE"), ""},
        {BYTES("\xFF\xFE\0a"), "\xE6\x84\x80"}, /* the mark of UTF-32 begins so */
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (size_t piece = 1; piece < 6; piece++) {
            struct str out;
            struct err err = {0};
            str_init(&out);
            const ingle_status st = decode(c[i].bytes, c[i].n, piece, false, &out, &err);
            if (st || out.n != strlen(c[i].text) || memcmp(out.at, c[i].text, out.n) != 0)
                fail_msg("%zu in pieces of %zu: %s '%s'", i, piece, err.msg, out.at);
            str_release(&out);
        }
}

static void the_rest_is_refused_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } c[] = {
        {BYTES("Gr\xF6\xDF" "e"), "FILE: byte 0xF6 at offset 2 is no UTF-8"},
        {BYTES("\xE9"), "byte 0xE9 at offset 0"},
        {BYTES("\xEF"), "byte 0xEF at offset 0"},
        {BYTES("\xEF\xBB"), "byte 0xEF at offset 0"},
        {BYTES("\xEF\xBB\xBF" "abc\x80"), "byte 0x80 at offset 6"},
        {BYTES("ab\xE6\xBC"), "byte 0xE6 at offset 2"},
        {BYTES("ab\xE6\xBC" "c"), "byte 0xE6 at offset 2"},
        {BYTES("\xED\xA0\xBD"), "byte 0xED at offset 0"},
        {BYTES("\xC0\x80"), "byte 0xC0 at offset 0"},
        {BYTES("\xFE"), "byte 0xFE at offset 0"},
        {BYTES("\xFF"), "byte 0xFF at offset 0"},
        {BYTES("a\0b\0"), "NUL byte at offset 1"},
        {BYTES("\0a"), "NUL byte at offset 0"},
        {BYTES("\0"), "NUL byte at offset 0"},
        {BYTES("\0\0\xFE"), "NUL byte at offset 0"},
        {BYTES("\xFF\xFE" "a"), "ends at offset 3"},
        {BYTES("\xFF\xFE" "a\0=\xD8"), "ends at offset 6"},
        {BYTES("\xFF\xFE" "a\0=\xD8" "a\0"), "0xD83D at offset 4"},
        {BYTES("\xFF\xFE" "a\0\0\xDE"), "0xDE00 at offset 4"},
        {BYTES("\xFF\xFE" "a\0\0\0"), "NUL character at offset 4"},
        {BYTES("\xFF\xFE\0\0\0\0\x11\0"), "0x110000 at offset 4"},
        {BYTES("\xFF\xFE\0\0\0\xD8\0\0"), "0xD800 at offset 4"},
        {BYTES("\xFF\xFE\0\0a\0"), "ends at offset 6 in the middle of a character of UTF-32"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (size_t piece = 1; piece < 8; piece++) {
            struct str out;
            struct err err = {0};
            str_init(&out);
            if (decode(c[i].bytes, c[i].n, piece, false, &out, &err) != INGLE_FORMAT ||
                !strstr(err.msg, c[i].says))
                fail_msg("%zu in pieces of %zu: '%s'", i, piece, err.msg);
            str_release(&out);
        }
}

static void lax_streams_know_marks_alone(void **state)
{
    (void)state;
    struct str out;
    struct err err;
    str_init(&out);
    assert_int_equal(decode(BYTES("\xEF\xBB\xBF{\xF6\0}"), 1, true, &out, &err), INGLE_OK);
    assert_int_equal(out.n, 4);
    assert_memory_equal(out.at, "{\xF6\0}", 4);
    str_clear(&out);
    assert_int_equal(decode(BYTES("\xFE\xFF\0{\xD8="), 1, true, &out, &err), INGLE_FORMAT);
    str_release(&out);
}

static void whole_texts(void **state)
{
    (void)state;
    struct err err;
    size_t n = 4;
    char *text = mem_strndup("\xEF\xBB\xBF" "a", 4);
    assert_int_equal(plain_text("FILE", &text, &n, &err), INGLE_OK);
    assert_int_equal(n, 1);
    assert_string_equal(text, "a");
    text[0] = '\xF6';
    assert_int_equal(plain_text("FILE", &text, &n, &err), INGLE_FORMAT);
    assert_int_equal(n, 1);
    mem_free(text);
    assert_int_equal(plain_check("argument 1", BYTES("a\xC3\xB6"), &err), INGLE_OK);
    assert_int_equal(plain_check("argument 1", BYTES("a\xF6"), &err), INGLE_FORMAT);
    assert_string_equal(err.msg, "argument 1: byte 0xF6 at offset 1 is no UTF-8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_become_utf8),
        cmocka_unit_test(the_rest_is_refused_with_its_place),
        cmocka_unit_test(lax_streams_know_marks_alone),
        cmocka_unit_test(whole_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
