/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mask costs on a vocabulary: bench_grammar VOCAB.gguf.  Texts are fed in the tokens
 * that the tokenizer cuts them into; before each one the whole mask is made.  Prints mean,
 * median, the worst, and how many cost more than a millisecond.
 */
#include "api/api.h"
#include "base/clock.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "ingle/ingle.h"
#include "text/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum form { JSON, SCHEMA, GBNF, REGEX };

static const char json_gbnf[] =
    "root ::= object\n"
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"
    "string ::= \"\\\"\" char* \"\\\"\" ws\n"
    "char ::= [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt/] | \"u\" [0-9a-fA-F]{4})\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
    "[1-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

#define TEXT                                                                                     \
    "{\"title\": \"The quick brown fox jumps over the lazy dog, twice\", \"id\": 48213, "       \
    "\"tags\": [\"alpha\", \"beta\", \"gamma\"], \"body\": \"Zażółć gęślą jaźń 漢字かな交じり文 — " \
    "and then some more words that go on for quite a while until the sentence ends.\", "         \
    "\"score\": 0.75, \"done\": true}"

#define PROPERTIES(limit)                                                                          \
    "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\"" limit "},\"id\":{"       \
    "\"type\":\"integer\",\"minimum\":0},\"tags\":{\"type\":\"array\",\"items\":{\"type\":"        \
    "\"string\"" limit "}},\"body\":{\"type\":\"string\"" limit                                    \
    "},\"score\":{\"type\":\"number\","                                                            \
    "\"minimum\":0,\"maximum\":1},\"done\":{\"type\":\"boolean\"}},\"required\":[\"title\","       \
    "\"id\","                                                                                      \
    "\"tags\",\"body\",\"score\",\"done\"]}"

static const struct {
    const char *name;
    enum form form;
    const char *text, *answer;
} jobs[] = {
    {"json object", JSON, NULL, TEXT},
    {"json.gbnf", GBNF, json_gbnf, TEXT},
    {"schema", SCHEMA, PROPERTIES(""), TEXT},
    {"schema, maxLength 200", SCHEMA, PROPERTIES(",\"maxLength\":200"), TEXT},
    {"schema, maxLength 2000", SCHEMA, PROPERTIES(",\"minLength\":1,\"maxLength\":2000"), TEXT},
    {"regex", REGEX, "\\{[^\\n]{10,1000}\\}", TEXT},
    {"gbnf .*", GBNF, "root ::= .*", TEXT},
    {"gbnf word rules", GBNF, "root ::= (char{1,20} | [^a-z]){0,100000}\nchar ::= [a-z]", TEXT},
};

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static ingle_status open_grammar(struct grammar **g, const struct tokenizer *t, size_t i,
                                 struct err *err)
{
    const char *s = jobs[i].text;
    switch (jobs[i].form) {
    case GBNF:
        return grammar_gbnf(g, t, s, strlen(s), NULL, err);
    case SCHEMA:
        return grammar_schema(g, s, strlen(s), NULL, NULL, err);
    case REGEX:
        return grammar_regex(g, s, strlen(s), NULL, err);
    case JSON:
        break;
    }
    return grammar_json(g, err);
}

static ingle_status run(const struct ingle_model *m, const struct grammar_vocab *v, size_t i,
                        struct err *err)
{
    struct grammar *g = NULL;
    struct grammar_matcher *x = NULL;
    struct text_ids ids = {0};
    uint64_t took[4096], start = clock_now(), sum = 0;
    size_t n = 0, n_slow = 0;
    ingle_status st = open_grammar(&g, m->tokenizer, i, err);
    const uint64_t compiled = clock_now() - start;
    if (!st)
        st = grammar_matcher_create(&x, g, v, err);
    if (!st)
        st = text_encode(m->tokenizer, jobs[i].answer, strlen(jobs[i].answer), false, NULL, 0, &ids,
                         err);
    for (; !st && n < ids.n && n < 4096; n++) {
        const uint64_t *bit;
        start = clock_now();
        st = grammar_matcher_mask(x, &bit, err);
        took[n] = clock_now() - start;
        if (!st)
            st = grammar_matcher_accept(x, ids.id[n], err);
        sum += took[n];
        n_slow += took[n] > 1000000;
    }
    if (!st && n) {
        qsort(took, n, sizeof *took, ascending);
        printf("%-24s compiled in %4.0f us, %3zu masks: mean %6.1f us, median %6.1f, worst %7.1f, "
               "%zu above 1 ms\n",
               jobs[i].name, (double)compiled * 1e-3, n, (double)sum / (double)n * 1e-3,
               (double)took[n / 2] * 1e-3, (double)took[n - 1] * 1e-3, n_slow);
    }
    text_ids_release(&ids);
    grammar_matcher_free(x);
    grammar_free(g);
    return st;
}

int main(int argc, char **argv)
{
    struct ingle_model *m = NULL;
    struct ingle_error error;
    struct grammar_vocab *v = NULL;
    struct err err = {0};
    if (ingle_model_open(&m, argc > 1 ? argv[1] : NULL, NULL, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    const uint64_t start = clock_now();
    ingle_status st = grammar_vocab_create(&v, m->tokenizer, (int64_t)text_n_tokens(m->tokenizer),
                                                m->end, m->n_end, &err);
    printf("%zu tokens, trie in %.1f ms\n", text_n_tokens(m->tokenizer),
           (double)(clock_now() - start) * 1e-6);
    for (size_t i = 0; !st && i < sizeof jobs / sizeof *jobs; i++)
        st = run(m, v, i, &err);
    if (st)
        fprintf(stderr, "%s\n", err.msg);
    grammar_vocab_free(v);
    ingle_model_close(m);
    return st != INGLE_OK;
}
