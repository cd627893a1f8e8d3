/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte picks: a JSON schema, or tools for one of the families; then its text. */
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
    if (data[0] == 'g')
        st = grammar_tools(&g, TEXT_CHAT_GEMMA4, f.t, text, n - 1, NULL, NULL, &err);
    else if (data[0] == 'd')
        st = grammar_tools(&g, TEXT_CHAT_DEEPSEEK_V4, f.t, text, n - 1, NULL, NULL, &err);
    else
        st = grammar_schema(&g, text, n - 1, NULL, NULL, &err);
    grammar_fuzz_run(&f, g, st, &err, n);
    return 0;
}
