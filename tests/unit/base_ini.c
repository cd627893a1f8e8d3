/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/ini.h"
#include "base/str.h"

#include <string.h>

/* What was read, as "section|key|value;" */
static ingle_status note(void *arg, const char *section, const char *key, const char *value, struct err *err)
{
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
    reads("# x\n; y\n  # z\na = # no comment", "|a|# no comment;");
    reads("[s]\na = \" b \"\nb = \"\nc =\nd = x = y\n[ t u ]\n[*]\na = 1", "[s];s|a| b ;s|b|\";s|c|;s|d|x = y;[t u];[*];*|a|1;");
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
