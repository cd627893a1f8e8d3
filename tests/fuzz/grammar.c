/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte picks: a GBNF grammar or a regular expression; then its text. */
#include "fuzz/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct grammar_fuzz f;
    struct grammar *g = NULL;
    struct err err = {0};
    ingle_status st;
    if (!f.t)
        grammar_fuzz_open(&f);
    if (!n)
        return 0;
    const char *text = (const char *)data + 1;
    if (data[0] == 'r')
        st = grammar_regex(&g, text, n - 1, NULL, &err);
    else
        st = grammar_gbnf(&g, f.t, text, n - 1, NULL, &err);
    grammar_fuzz_run(&f, g, st, &err, n);
    return 0;
}
