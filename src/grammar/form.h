/*
 * grammar_form - how values are written: JSON, or what a model family makes of it in a call.
 *
 * FORM_DSML is JSON inside a DeepSeek V4 parameter, FORM_RAW a string there, as it stands.
 */
#ifndef INGLE_GRAMMAR_FORM_H
#define INGLE_GRAMMAR_FORM_H

#include "base/json.h"
#include "grammar/impl.h"

enum form_kind { FORM_JSON, FORM_GEMMA, FORM_DSML, FORM_RAW };

enum form_shared {
    SHARED_SPACE,
    SHARED_STRING,
    SHARED_NUMBER,
    SHARED_INTEGER,
    SHARED_VALUE,
    SHARED_OBJECT,
    SHARED_ARRAY,
    N_SHARED
};

/* The text that must not occur in a string of the form; n 0: none. */
struct form_mark {
    uint32_t cp[3];
    int n;
};

struct grammar_form {
    struct grammar_builder *b;
    const struct tokenizer *t;
    enum form_kind kind;
    uint32_t shared[N_SHARED]; /* rule + 1; 0: not made yet */
};

/* A marker of the family: its token, or its spelling if the vocabulary has no such token. */
struct grammar_piece grammar_f_mark(struct grammar_form *f, const char *spelling);
int32_t grammar_f_mark_id(const struct tokenizer *t, const char *spelling); /* -1: none */
/* White space, where JSON allows it: none, a space, or a line feed and indentation. */
struct grammar_piece grammar_f_space(struct grammar_form *f);
/* Strings with what stands around them, of min to max characters. */
struct grammar_piece grammar_f_string(struct grammar_form *f, uint32_t min, uint32_t max);
/* Puts around a string what stands around it. */
struct grammar_piece grammar_f_quoted(struct grammar_form *f, struct grammar_piece inner);
/* The characters that may stand in a string, and one of c as it is written there. */
void grammar_f_plain_chars(struct grammar_form *f, struct grammar_class *out);
struct grammar_piece grammar_f_char_of(struct grammar_form *f, struct grammar_class *c);
struct form_mark grammar_f_forbidden(enum form_kind kind);

/* "name": or name: */
struct grammar_piece grammar_f_name(struct grammar_form *f, const char *name, size_t n);
/* Any name but those of the members of `but` (which may be NULL), with what stands around it;
 * grammar_f_other(): the bare name. */
struct grammar_piece grammar_f_other(struct grammar_form *f, struct json_object *but);
struct grammar_piece grammar_f_other_name(struct grammar_form *f, struct json_object *but);
/* Exactly this value.  INGLE_UNSUP: the form cannot say it. */
struct grammar_piece grammar_f_exactly(struct grammar_form *f, struct json_object *v);

struct grammar_piece grammar_f_number(struct grammar_form *f);
struct grammar_piece grammar_f_integer(struct grammar_form *f);
struct grammar_piece grammar_f_any(struct grammar_form *f);
struct grammar_piece grammar_f_any_object(struct grammar_form *f);
struct grammar_piece grammar_f_any_array(struct grammar_form *f);

/* A bound of a number: the decimal digits around the point, no exponent. */
enum { FORM_DIGITS = 18 };
struct form_bound {
    bool set, negative, exclusive;
    int n_int, n_frac;
    char digit[2 * FORM_DIGITS]; /* n_int, then n_frac; no superfluous zeros */
};
/* False: more digits than FORM_DIGITS on a side. */
bool grammar_f_bound(struct form_bound *out, const char *number);
/* Numbers between bounds; integers alone if whole is set. */
struct grammar_piece grammar_f_between(struct grammar_form *f, const struct form_bound *low,
                                    const struct form_bound *high, bool whole);

/* Of these the multiples of step, which is above 0.  False: they have too many digits, or too many states. */
bool grammar_f_multiples(struct grammar_form *f, const struct form_bound *low, const struct form_bound *high,
                      const struct form_bound *step, bool whole, struct grammar_piece *out);

/* A regular expression: of a whole text (f NULL), or of a string's contents in form f.  whole:
 * anchored at both ends even without ^ and $.  Its texts must have min to max characters:
 * INGLE_UNSUP where that does not follow from the expression itself. */
struct grammar_piece grammar_f_regex(struct grammar_builder *b, struct grammar_form *f, const char *text,
                                  size_t n, bool whole, uint32_t min, uint32_t max);

#endif
