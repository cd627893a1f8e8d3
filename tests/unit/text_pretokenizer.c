/* SPDX-License-Identifier: Apache-2.0 */
/* Where the DeepSeek pre-tokenizer cuts; what each of its rules takes and leaves. */
#include "unit/unit.h"

#include "base/str.h"
#include "text/tokenizer_impl.h"
#include <string.h>

/* The pieces of text with '|' between must be want. */
static void expect(const char *text, const char *want)
{
    struct text_split split = {.text = text, .n = strlen(text)};
    struct str s;
    size_t at = 0, begin, end;
    str_init(&s);
    while (text_split_next(&split, &begin, &end)) {
        assert_int_equal(begin, at);
        assert_true(end > begin);
        if (begin)
            str_addc(&s, '|');
        str_add(&s, text + begin, end - begin);
        at = end;
    }
    assert_int_equal(at, strlen(text));
    assert_string_equal(s.at, want);
    str_release(&s);
}

static void digits_come_by_three(void **state)
{
    (void)state;
    expect("1", "1");
    expect("1234567", "123|456|7");
    expect("x12y", "x|12|y");
    expect("\xD9\xA1\xD9\xA2\xD9\xA3\xD9\xA4",
           "\xD9\xA1\xD9\xA2\xD9\xA3|\xD9\xA4"); /* Arabic digits */
    expect("\xC2\xBD"
           "5\xE2\x85\xA7",
           "\xC2\xBD"
           "5\xE2\x85\xA7"); /* 1/2, 5, VIII */
    expect(" 12", " |12");
    expect("\xCC\x81"
           "1",
           "\xCC\x81|1");
}

static void cjk_and_kana_are_apart(void **state)
{
    (void)state;
    expect("中文abc", "中文|abc");
    expect("abcカナ漢字", "abc|カナ漢字");
    expect("한글中", "한글|中");
    expect("ア・イ", "ア|・|イ"); /* the dot is punctuation, and no third rule joins it */
    expect("中。文", "中|。|文");
    expect("\xE9\xBE\xA5\xE9\xBE\xA6", "\xE9\xBE\xA5|\xE9\xBE\xA6"); /* U+9FA5 is the last */
    expect(" 中", " |中");
}

static void words_take_one_character_before_them(void **state)
{
    (void)state;
    expect("two words", "two| words");
    expect("\tword", "\tword");
    expect("\nword", "\n|word");
    expect("e\xCC\x81t", "e\xCC\x81t");
    expect("\xCC\x81", "\xCC\x81");
    expect(" \xCC\x81", " \xCC\x81");
    expect("\x01word\x01", "\x01word|\x01");
    expect("\x01\x02\x03word", "\x01\x02|\x03word");
    expect("\xE2\x80\x8Dword", "\xE2\x80\x8Dword"); /* a joiner is no letter */
}

static void ascii_signs_take_ascii_letters(void **state)
{
    (void)state;
    expect("'s", "'s");
    expect("it's.length", "it|'s|.length");
    expect("~a", "~a");
    expect("_\xC3\xA9", "_|\xC3\xA9");
    expect("-a\xC3\xA9", "-a|\xC3\xA9");
    expect("--a", "--|a");
    expect("$a1", "$a|1");
}

static void signs_take_a_space_and_newlines(void **state)
{
    (void)state;
    expect(" !!\n\nx", " !!\n\n|x");
    expect("a ,b", "a| ,|b");
    expect("  (", " | (");
    expect("\xE2\x80\x9Cq\xE2\x80\x9D", "\xE2\x80\x9C|q|\xE2\x80\x9D");
    expect("!\r\n \n", "!\r\n| \n");
    expect("\xE2\x82\xAC+~", "\xE2\x82\xAC+~");
}

static void white_space_leaves_its_last_to_the_next(void **state)
{
    (void)state;
    expect("   x", "  | x");
    expect("   ", "   ");
    expect("  \n  x", "  \n| | x");
    expect("\n\n", "\n\n");
    expect(" \t\r\n\t ", " \t\r\n|\t ");
    expect("a   1", "a|   |1"); /* the digit is another section: nothing follows the run */
    expect("x \n", "x| \n");
    expect("\xC2\xA0\xE3\x80\x80x", "\xC2\xA0|\xE3\x80\x80x");
    expect("\xC2\x85\xE2\x80\xA8", "\xC2\x85\xE2\x80\xA8");
    expect(" 1", " |1");
    expect("", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_come_by_three),
        cmocka_unit_test(cjk_and_kana_are_apart),
        cmocka_unit_test(words_take_one_character_before_them),
        cmocka_unit_test(ascii_signs_take_ascii_letters),
        cmocka_unit_test(signs_take_a_space_and_newlines),
        cmocka_unit_test(white_space_leaves_its_last_to_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
