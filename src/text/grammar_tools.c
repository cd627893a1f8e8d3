/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar_schema.h"

ingle_status text_grammar_tools(struct text_grammar **out, enum text_chat_family family,
                                const struct tokenizer *t, const char *text, size_t n,
                                const struct report_sink *sink, struct err *err)
{
    (void)out, (void)family, (void)t, (void)text, (void)n, (void)sink;
    return err_set(err, INGLE_UNSUP, "tool calls cannot be constrained yet");
}
