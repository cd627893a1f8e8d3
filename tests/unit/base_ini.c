/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/ini.h"
#include "base/str.h"

#include <string.h>

/* What was read, as "section|key|value;" */
static ingle_status note(void *arg, int line, const char *section, const char *key,
                         const char *value, struct err *err)
{
    (void)line;
    if (key && strcmp(key, "refused") == 0)
        return err_set(err, INGLE_ARG, "not this");
    if (key)
        str_addf(arg, "%s|%s|%s;", section, key, value);
    else
        str_addf(arg, "[%s];", section);
    return INGLE_OK;
}

static void reads(const char *text, const char *expect)
{
    struct str s;
    struct err err;
    str_init(&s);
    assert_int_equal(ini_read("f", text, strlen(text), note, &s, &err), INGLE_OK);
    assert_string_equal(s.at, expect);
    str_release(&s);
}

static void refuses(const char *text, size_t n, const char *expect)
{
    struct str s;
    struct err err;
    str_init(&s);
    assert_int_not_equal(ini_read("f", text, n, note, &s, &err), INGLE_OK);
    assert_string_equal(err.msg, expect);
    str_release(&s);
}

static void test_lines(void **state)
{
    (void)state;
    reads("", "");
    reads("a=b", "|a|b;");
    reads("a = b\n\n  c\t=  d e  \r\n", "|a|b;|c|d e;");
    reads("[s]\na = \" b \"\nc =\nd = x = y\n[ t u ]\n[*]\na = 1",
          "[s];s|a| b ;s|c|;s|d|x = y;[t u];[*];*|a|1;");
    reads("[s] ; x]\n[t]\t# y\n[u;v]\n[a] b]", "[s];[t];[u;v];[a] b];");
}

static void test_comments(void **state)
{
    (void)state;
    reads("# x\n; y\n  # z\na = # a comment\nb =; none", "|a|;|b|; none;");
    reads("a = x.gguf ; c\nb = x # c # d\nc = a;b;c\nd = x#y\ne = 1\t;c",
          "|a|x.gguf;|b|x;|c|a;b;c;|d|x#y;|e|1;");
    reads("a = \"x # y\" # z\nb = 'x ; y' ; z\nc = \"x\"# y", "|a|x # y;|b|x ; y;|c|\"x\"# y;");
    reads("a = {\"b\": \" # \\\" ; \"} # c\nb = [\"x ; y\"]",
          "|a|{\"b\": \" # \\\" ; \"};|b|[\"x ; y\"];");
}

static void test_quotes(void **state)
{
    (void)state;
    reads("a = 'b'\nb = \"\"\nc = ''\nd = \"a\" and \"b\"", "|a|b;|b|;|c|;|d|a\" and \"b;");
    reads("a = '{\"x\": 1}'\nb = \"it's\"\nc = 'a' b", "|a|{\"x\": 1};|b|it's;|c|'a' b;");
    refuses("a = \"b", 6,
            "f:1: a value begins with a quote that is not closed: put the whole of it into quotes "
            "of the other kind");
    refuses("a = '", 5,
            "f:1: a value begins with a quote that is not closed: put the whole of it into quotes "
            "of the other kind");
}

static void tell(void *arg, const char *text) { str_addf(arg, "!%s;", text); }

static void test_all_errors(void **state)
{
    static const char text[] = "refused = 1\n[a]\nb\nc = 1\nrefused = 2\n";
    struct str s;
    struct err err;
    (void)state;
    str_init(&s);
    assert_int_equal(ini_read_on("f", text, sizeof text - 1, note, tell, &s, &err), INGLE_ARG);
    assert_string_equal(err.msg, "f:1: not this");
    assert_string_equal(s.at, "!f:1: not this;[a];!f:3: a line is neither 'key = value', a "
                              "[section] nor a comment;a|c|1;!f:5: not this;");
    str_release(&s);
}

static void test_errors(void **state)
{
    char large[INI_MAX_VALUE + 8];
    (void)state;
    refuses("a = 1\nb", 7, "f:2: a line is neither 'key = value', a [section] nor a comment");
    refuses("[a", 2, "f:1: a section has no ']' at its end");
    refuses("[ ]", 3, "f:1: a section has no name, or one of more than 255 bytes");
    refuses("[", 1, "f:1: a section has no ']' at its end");
    refuses("= 1", 3, "f:1: a key has no name, or one of more than 255 bytes");
    refuses("a = \0", 5, "f:1: a line has a zero byte");
    refuses("[x]\n\nrefused = 1", 16, "f:3: not this");
    memset(large, 'x', sizeof large);
    memcpy(large, "a = ", 4);
    refuses(large, sizeof large, "f:1: a value has more than 16384 bytes");
    memset(large, 'k', 300);
    refuses(large, sizeof large, "f:1: a line is neither 'key = value', a [section] nor a comment");
    large[300] = '=';
    refuses(large, 310, "f:1: a key has no name, or one of more than 255 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines),
                                       cmocka_unit_test(test_comments),
                                       cmocka_unit_test(test_quotes), cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_all_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
