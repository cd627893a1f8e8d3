/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of each reader of grammars grows as its text does: counted in steps of its budget, on
 * texts of n, 2n and 4n parts that are made to cost more.  Where a text means more work than that
 * by itself, the budget ends it.
 */
#include "base/mem.h"
#include "base/str.h"
#include "grammar/grammar.h"
#include "unit/unit.h"
#include <string.h>

enum form { GBNF, REGEX, SCHEMA, TOOLS };

/* ---- texts ---- */

static void put_list(struct str *s, int n, const char *each)
{
    for (int i = 0; i < n; i++) {
        str_adds(s, i ? "," : "");
        for (const char *c = each; *c; c++)
            if (*c == '@')
                str_addf(s, "%d", i);
            else if (*c == '+')
                str_addf(s, "%d", i + 1);
            else
                str_addc(s, *c);
    }
}

static void ref_doubling(struct str *s, int n)
{
    str_adds(s, "{\"$defs\":{");
    put_list(s, n, "\"a@\":{\"allOf\":[{\"$ref\":\"#/$defs/a+\"},{\"$ref\":\"#/$defs/a+\"}]}");
    str_addf(s, ",\"a%d\":{\"type\":\"string\"}},\"$ref\":\"#/$defs/a0\"}", n);
}

static void ref_of_property(struct str *s, int n)
{
    str_adds(s, "{\"$defs\":{");
    put_list(s, n,
             "\"a@\":{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#/$defs/"
             "a+\"},\"y\":{\"$ref\":\"#/$defs/a+\"}}}");
    str_addf(s, ",\"a%d\":{\"type\":\"string\"}},\"$ref\":\"#/$defs/a0\"}", n);
}

static void many_refs(struct str *s, int n)
{
    str_adds(s, "{\"$defs\":{");
    put_list(s, n, "\"a@\":{\"type\":\"boolean\"}");
    str_adds(s, "},\"properties\":{");
    put_list(s, n, "\"p@\":{\"$ref\":\"#/$defs/a@\"}");
    str_adds(s, "}}");
}

static void all_of_properties(struct str *s, int n)
{
    str_adds(s, "{\"allOf\":[");
    put_list(s, n, "{\"properties\":{\"p@\":true}}");
    str_adds(s, "]}");
}

static void all_of_one_property(struct str *s, int n)
{
    str_adds(s, "{\"allOf\":[");
    put_list(s, n,
             "{\"properties\":{\"p\":{\"minLength\":@}},\"items\":{\"minLength\":@},\"required\":["
             "\"q@\"]}");
    str_adds(s, "]}");
}

static void required(struct str *s, int n)
{
    str_adds(s, "{\"properties\":{");
    put_list(s, n, "\"p@\":{\"type\":\"null\"}");
    str_adds(s, "},\"required\":[");
    put_list(s, n, "\"p@\"");
    str_adds(s, "]}");
}

static void too_many_required(struct str *s, int n)
{
    (void)n;
    str_adds(s, "{\"properties\":{");
    put_list(s, 40000, "\"p@\":true");
    str_adds(s, "},\"required\":[");
    put_list(s, 45000, "\"p@\"");
    str_adds(s, "]}");
}

static void enum_by_enum(struct str *s, int n)
{
    str_adds(s, "{\"allOf\":[{\"enum\":[");
    put_list(s, n, "\"v@\"");
    str_adds(s, "]},{\"enum\":[");
    put_list(s, n, "\"v+\"");
    str_adds(s, "]}]}");
}

static void enum_in_branch(struct str *s, int n)
{
    str_adds(s, "{\"enum\":[");
    put_list(s, n, "@");
    str_adds(s, "],\"oneOf\":[{\"enum\":[");
    put_list(s, n, "+");
    str_adds(s, "]}]}");
}

static void const_in_refs(struct str *s, int n)
{
    str_adds(s, "{\"$defs\":{");
    put_list(s, n, "\"a@\":{\"anyOf\":[{\"$ref\":\"#/$defs/a+\"},{\"$ref\":\"#/$defs/a+\"}]}");
    str_addf(s,
             ",\"a%d\":{\"type\":\"integer\"}},\"const\":{\"x\":1},\"properties\":{\"x\":{\"$ref\":"
             "\"#/$defs/a0\"}}}",
             n);
}

static void values_by_pattern(struct str *s, int n)
{
    str_adds(s, "{\"pattern\":\"^(a|b|ab|ba|aa)*[0-9]*c\",\"enum\":[");
    put_list(s, n, "\"abababaabaabab@c\"");
    str_adds(s, "]}");
}

static void branches_of_base(struct str *s, int n)
{
    str_adds(s, "{\"properties\":{");
    put_list(s, n, "\"p@\":true");
    str_adds(s, "},\"anyOf\":[");
    put_list(s, n, "{\"required\":[\"p@\"]}");
    str_adds(s, "]}");
}

static void nested_branches(struct str *s, int n)
{
    int depth = n > 24 ? 24 : n;
    for (int i = 0; i < depth; i++)
        str_addf(s, "{\"minLength\":%d,\"anyOf\":[{\"maxLength\":%d},", i, 1000 - i);
    str_adds(s, "true");
    for (int i = 0; i < depth; i++)
        str_adds(s, "]}");
}

static void deep_items(struct str *s, int n)
{
    int depth = n > 30 ? 30 : n;
    for (int i = 0; i < depth; i++)
        str_adds(s, "{\"items\":");
    str_adds(s, "true");
    for (int i = 0; i < depth; i++)
        str_addc(s, '}');
}

static void multiples(struct str *s, int n)
{
    str_adds(s, "{\"prefixItems\":[");
    put_list(s, n, "{\"type\":\"integer\",\"multipleOf\":1+}");
    str_adds(s, "]}");
}

static void hard_multiples(struct str *s, int n)
{
    str_adds(s, "{\"prefixItems\":[");
    put_list(s, n, "{\"type\":\"integer\",\"minimum\":0,\"maximum\":1+,\"multipleOf\":49+}");
    str_adds(s, "]}");
}

/* CJK characters, each one once. */
static void forbidden_names(struct str *s, int n)
{
    str_adds(s, "{\"additionalProperties\":true,\"properties\":{");
    for (int i = n; i-- > 0;)
        str_addf(s, "\"%c%c%c\":{\"type\":\"null\"}%s", 0xE4 + i / 4096, 0x80 + i / 64 % 64,
                 0x80 + i % 64, i ? "," : "");
    str_adds(s, "}}");
}

static void long_path_of_notes(struct str *s, int n)
{
    str_adds(s, "{\"properties\":{\"");
    for (int i = 0; i < n; i++)
        str_adds(s, "name");
    str_adds(s, "\":{");
    put_list(s, n, "\"unknown@\":1");
    str_adds(s, "}}}");
}

static void bounds(struct str *s, int n)
{
    str_adds(s, "{\"prefixItems\":[");
    put_list(s, n,
             "{\"type\":\"integer\",\"minimum\":-123456789012345+,\"maximum\":987654321098765+}");
    str_adds(s, "]}");
}

/* From the end to the beginning, with gaps. */
static void class_of_many(struct str *s, int n)
{
    str_adds(s, "[");
    for (int i = n; i-- > 0;) {
        const int c = 2 * i;
        str_addf(s, "%c%c%c", 0xE4 + c / 4096, 0x80 + c / 64 % 64, 0x80 + c % 64);
    }
    str_adds(s, "]");
}

static void gbnf_class(struct str *s, int n)
{
    str_adds(s, "root ::= ");
    class_of_many(s, n);
}

static void many_classes(struct str *s, int n)
{
    for (int i = 0; i < n; i++)
        str_adds(s, "[^\\d\\w]");
}

static void dots(struct str *s, int n)
{
    for (int i = 0; i < n; i++)
        str_adds(s, ".?");
}

static void nested_repetition(struct str *s, int n)
{
    int depth = n > 100 ? 100 : n;
    for (int i = 0; i < depth; i++)
        str_adds(s, "(?:");
    str_adds(s, "a");
    for (int i = 0; i < depth; i++)
        str_adds(s, "){1,1000}");
}

static void alternatives(struct str *s, int n)
{
    for (int i = 0; i < n; i++)
        str_addf(s, "%sw%d", i ? "|" : "", i);
}

static void gbnf_rules(struct str *s, int n)
{
    str_adds(s, "root ::= r0\n");
    for (int i = 0; i < n; i++)
        str_addf(s, "r%d ::= \"x\" r%d | r%d\n", i, i + 1, i + 1);
    str_addf(s, "r%d ::= \"y\"\n", n);
}

static void many_tools(struct str *s, int n)
{
    str_adds(s, "{\"choice\":[");
    put_list(s, n, "\"f@\"");
    str_adds(s, "],\"tools\":[");
    put_list(s, n < 1000 ? n : 1000,
             "{\"function\":{\"name\":\"f@\",\"parameters\":{\"properties\":{\"a\":{\"type\":"
             "\"null\"}}}}}");
    str_adds(s, "]}");
}

static void doubling_tool(struct str *s, int n)
{
    str_adds(s, "{\"behind\":true,\"tools\":[{\"name\":\"f\",\"parameters\":");
    str_adds(s, "{\"type\":\"object\",\"properties\":{\"a\":true},\"$defs\":{");
    put_list(s, n, "\"a@\":{\"allOf\":[{\"$ref\":\"#/$defs/a+\"},{\"$ref\":\"#/$defs/a+\"}]}");
    str_addf(s, ",\"a%d\":{\"type\":\"object\"}},\"$ref\":\"#/$defs/a0\"}}]}", n);
}

/* ---- what they cost ---- */

static const struct {
    const char *name;
    enum form form;
    void (*make)(struct str *s, int n);
    int n;
    const char *limit; /* of 4n, where it costs more by itself: the error says so */
} texts[] = {
    {"ref doubling", SCHEMA, ref_doubling, 7, NULL},
    {"ref doubling, deep", SCHEMA, ref_doubling, 100, "deeper than the limit of 64"},
    {"refs of properties", SCHEMA, ref_of_property, 1000, NULL},
    {"many refs", SCHEMA, many_refs, 2000, NULL},
    {"allOf of properties", SCHEMA, all_of_properties, 2000, NULL},
    {"allOf of one property", SCHEMA, all_of_one_property, 1000, NULL},
    {"required", SCHEMA, required, 4000, NULL},
    {"too many required", SCHEMA, too_many_required, 1, "limit of 65536"},
    {"enum by enum", SCHEMA, enum_by_enum, 10000, NULL},
    {"enum in a branch", SCHEMA, enum_in_branch, 10000, NULL},
    {"const in refs", SCHEMA, const_in_refs, 10, "limit of 4194304 steps"},
    {"values by pattern", SCHEMA, values_by_pattern, 1000, NULL},
    {"branches of a base", SCHEMA, branches_of_base, 500, "limit of"},
    {"nested branches", SCHEMA, nested_branches, 6, NULL},
    {"deep items", SCHEMA, deep_items, 7, NULL},
    {"multiples", SCHEMA, multiples, 50, "limit of"},
    {"hard multiples", SCHEMA, hard_multiples, 500, NULL},
    {"forbidden names", SCHEMA, forbidden_names, 2000, NULL},
    {"a long path of notes", SCHEMA, long_path_of_notes, 2000, NULL},
    {"bounds", SCHEMA, bounds, 200, NULL},
    {"class", REGEX, class_of_many, 2000, NULL},
    {"class of a grammar", GBNF, gbnf_class, 2000, NULL},
    {"classes", REGEX, many_classes, 1000, NULL},
    {"dots", REGEX, dots, 4000, NULL},
    {"nested repetition", REGEX, nested_repetition, 25, NULL},
    {"alternatives", REGEX, alternatives, 10000, NULL},
    {"rules", GBNF, gbnf_rules, 4000, NULL},
    {"tools", TOOLS, many_tools, 250, NULL},
    {"a tool of refs", TOOLS, doubling_tool, 7, NULL},
};

static ingle_status compile(enum form form, const struct str *s, struct grammar_work *w,
                            struct err *err)
{
    struct grammar *g = NULL;
    ingle_status st = INGLE_OK;
    switch (form) {
    case GBNF:
        st = grammar_gbnf(&g, NULL, s->at, s->n, w, err);
        break;
    case REGEX:
        st = grammar_regex(&g, s->at, s->n, w, err);
        break;
    case SCHEMA:
        st = grammar_schema(&g, s->at, s->n, NULL, w, err);
        break;
    case TOOLS:
        st = grammar_tools(&g, TEXT_CHAT_GEMMA4, NULL, s->at, s->n, NULL, w, err);
        break;
    }
    grammar_free(st ? NULL : g);
    return st;
}

static void test_growth(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        double steps[3] = {0};
        for (int k = 0; k < 3; k++) {
            struct grammar_work w = {0};
            struct err err = {0};
            struct str s;
            str_init(&s);
            texts[i].make(&s, texts[i].n << k);
            const ingle_status st = compile(texts[i].form, &s, &w, &err);
            str_release(&s);
            steps[k] = (double)w.n_steps;
            if (w.n_steps > 2 * GRAMMAR_WORK_STEPS || w.n_bytes > GRAMMAR_WORK_BYTES + 4096)
                fail_msg("%s: %llu steps, %llu bytes", texts[i].name, (unsigned long long)w.n_steps,
                         (unsigned long long)w.n_bytes);
            if (st && (!texts[i].limit || st != INGLE_LIMIT || !strstr(err.msg, texts[i].limit)))
                fail_msg("%s, %d: %d %s", texts[i].name, texts[i].n << k, (int)st, err.msg);
            if (!st && k == 2 && texts[i].limit)
                fail_msg("%s, %d: no limit is hit: %.0f steps", texts[i].name, texts[i].n << k,
                         steps[k]);
        }
        /* n log n, of texts of at least 2^3 parts */
        if (!texts[i].limit && steps[2] > steps[0] * 4 * (5.0 / 3) + 1000)
            fail_msg("%s: %.0f, %.0f, %.0f steps", texts[i].name, steps[0], steps[1], steps[2]);
    }
}

static bool never(void *arg)
{
    ++*(int *)arg;
    return false;
}

static bool at_third(void *arg)
{
    return ++*(int *)arg == 3;
}

static void test_stop(void **state)
{
    static const enum form form[] = {SCHEMA, REGEX, GBNF, TOOLS};
    static void (*const make[])(struct str * s, int n) = {many_refs, many_classes, gbnf_rules,
                                                          many_tools};
    (void)state;
    for (int i = 0; i < 4; i++) {
        int n = 0, n_asked = 0;
        struct err err = {0};
        struct str s;
        str_init(&s);
        make[i](&s, 4000);
        struct grammar_work all = {.stop = never, .arg = &n},
                            some = {.stop = at_third, .arg = &n_asked};
        (void)!compile(form[i], &s, &all, &err);
        assert_true(n > 5);
        assert_int_equal(compile(form[i], &s, &some, &err), INGLE_CANCEL);
        assert_int_equal(n_asked, 3);
        assert_true(some.n_steps < all.n_steps * 2 / 3);
        str_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
