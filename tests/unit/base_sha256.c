/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/sha256.h"
#include <string.h>

/* The examples of FIPS 180-4, and lengths around a block. */
static void standard_vectors_hold(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
         "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char hex[SHA256_HEX + 1];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        sha256_hex(known[i].text, strlen(known[i].text), hex, SHA256_HEX);
        assert_string_equal(hex, known[i].hex);
    }
}

static void a_million_letters_in_odd_pieces(void **state)
{
    (void)state;
    static char a[1000];
    memset(a, 'a', sizeof a);
    struct sha256 s;
    uint8_t hash[SHA256_BYTES];
    sha256_init(&s);
    for (size_t left = 1000000, part = 1; left; left -= part) {
        part = part % 997 + 1 < left ? part % 997 + 1 : left;
        sha256_add(&s, a, part);
    }
    sha256_end(&s, hash);
    static const uint8_t want[SHA256_BYTES] = {0xcd, 0xc7, 0x6e, 0x5c, 0x99, 0x14, 0xfb, 0x92,
                                               0x81, 0xa1, 0xc7, 0xe2, 0x84, 0xd7, 0x3e, 0x67,
                                               0xf1, 0x80, 0x9a, 0x48, 0xa4, 0x97, 0x20, 0x0e,
                                               0x04, 0x6d, 0x39, 0xcc, 0xc7, 0x11, 0x2c, 0xd0};
    assert_memory_equal(hash, want, sizeof want);
}

/* Lengths around the padding: pieces and whole agree, and no two lengths do. */
static void padding_is_right_at_every_length(void **state)
{
    (void)state;
    static const char zeros[130];
    char before[SHA256_HEX + 1] = "", hex[SHA256_HEX + 1];
    for (size_t n = 0; n < 130; n++) {
        struct sha256 s;
        uint8_t hash[SHA256_BYTES];
        sha256_init(&s);
        for (size_t i = 0; i < n; i++)
            sha256_add(&s, zeros, 1);
        sha256_end(&s, hash);
        sha256_hex(zeros, n, hex, SHA256_HEX);
        for (int i = 0; i < SHA256_BYTES; i++) {
            static const char digit[] = "0123456789abcdef";
            assert_int_equal(hex[2 * i], digit[hash[i] >> 4]);
            assert_int_equal(hex[2 * i + 1], digit[hash[i] & 15]);
        }
        assert_string_not_equal(hex, before);
        memcpy(before, hex, sizeof hex);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_vectors_hold),
        cmocka_unit_test(a_million_letters_in_odd_pieces),
        cmocka_unit_test(padding_is_right_at_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
