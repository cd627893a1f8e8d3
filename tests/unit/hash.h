/* hash - what an engine computes, as one number. */
#ifndef INGLE_TESTS_HASH_H
#define INGLE_TESTS_HASH_H

#include "unit/door.h"

#include "model/packed.h"

/* Hash of the logits of a prompt and of some tokens behind it; 0 with `error` where a step
 * fails. */
static inline uint64_t hash_of(struct ingle_engine *e, int n_prompt, int n_answer)
{
    struct ingle_engine_info info;
    struct ingle_session *s;
    int32_t tokens[256];
    const float *logits;
    uint64_t h = 1;
    assert_true(n_prompt + n_answer <= 256);
    ingle_engine_info(e, &info);
    ingle_engine_forget(e);
    for (int i = 0; i < n_prompt + n_answer; i++)
        tokens[i] = (int32_t)((i * 7919 + 5) % info.n_vocab);
    must(ingle_session_open(&s, e, &error));
    for (int n = n_prompt; h && n <= n_prompt + n_answer; n++) {
        if (ingle_session_sync(s, tokens, n, NULL, &error) ||
            ingle_session_finish(s, &logits, &error))
            h = 0;
        else
            h = h * 31 + model_packed_sum_of(logits, (size_t)info.n_vocab * sizeof *logits).lo;
    }
    ingle_session_close(s);
    return h;
}

#endif
