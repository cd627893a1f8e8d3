/*
 * grammar_form - how values are written: JSON, or what a model family makes of it in a call.
 *
 * FORM_DSML is JSON inside a DeepSeek V4 parameter, FORM_RAW a string there, as it stands.
 */
#ifndef INGLE_GRAMMAR_FORM_H
#define INGLE_GRAMMAR_FORM_H

#include "base/json.h"
#include "grammar/build.h"
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
/* Any bare name but those of the members of `but` (which may be NULL); and a bare name with what
 * stands around it. */
struct grammar_piece grammar_f_other(struct grammar_form *f, struct json_object *but);
struct grammar_piece grammar_f_named(struct grammar_form *f, struct grammar_piece name);
/* Exactly this value.  INGLE_UNSUP: the form cannot say it. */
struct grammar_piece grammar_f_exactly(struct grammar_form *f, struct json_object *v);

struct grammar_piece grammar_f_number(struct grammar_form *f);
struct grammar_piece grammar_f_integer(struct grammar_form *f);
struct grammar_piece grammar_f_any(struct grammar_form *f);
struct grammar_piece grammar_f_any_object(struct grammar_form *f);
struct grammar_piece grammar_f_any_array(struct grammar_form *f);

/* A bound of a number: the decimal digits around the point. */
enum { FORM_DIGITS = 40 };
struct form_bound {
    bool set, negative, exclusive;
    int n_int, n_frac;
    char digit[2 * FORM_DIGITS]; /* n_int, then n_frac; no superfluous zeros */
};
/* False: more digits than FORM_DIGITS on a side; *large: in front of the point. */
bool grammar_f_bound(struct form_bound *out, const char *number, bool *large);
/* Numbers between bounds; integers alone if whole is set. */
struct grammar_piece grammar_f_between(struct grammar_form *f, const struct form_bound *low,
                                    const struct form_bound *high, bool whole);

/* Of these the multiples of step, which is above 0.  False: they have too many digits, or too many
 * states. */
bool grammar_f_multiples(struct grammar_form *f, const struct form_bound *low,
                         const struct form_bound *high, const struct form_bound *step, bool whole,
                         struct grammar_piece *out);

/* A regular expression: of a whole text (f NULL), or of a string's contents in form f.  whole:
 * anchored at both ends even without ^ and $.  Its texts must have min to max characters:
 * INGLE_UNSUP where that does not follow from the expression itself. */
struct grammar_piece grammar_f_regex(struct grammar_builder *b, struct grammar_form *f,
                                     const char *text, size_t n, bool whole, uint32_t min,
                                     uint32_t max);

/* Texts that fit several grammars of plain text (UTF-8) at once, and (inverse) others not at all.
 * What is to meet is gathered, from a zeroed list except for b, then made a piece, which ends the
 * list. */
enum { MEET_MAX_PARTS = 12 };
struct meet_part {
    struct grammar *g;
    bool inverse;
};
struct form_meeting {
    struct grammar_builder *b;
    struct meet_part part[MEET_MAX_PARTS]; /* owned */
    size_t n;
    bool nothing; /* one of them has no texts */
};
/* One more by a builder of its own: begun (false: m->b has failed), and the piece that it has
 * made. */
bool grammar_f_meet_begin(struct form_meeting *m, struct grammar_builder *own, struct err *err);
void grammar_f_meet_take(struct form_meeting *m, struct grammar_builder *own, const struct err *err,
                         struct grammar_piece p, bool inverse);
void grammar_f_meet_regex(struct form_meeting *m, const char *text, size_t n, bool whole,
                          bool inverse);
void grammar_f_meet_length(struct form_meeting *m, uint32_t min, uint32_t max);
/* The keys of an object. */
void grammar_f_meet_words(struct form_meeting *m, struct json_object *words, bool inverse);
/* *empty: there is no such text.  As it stands; as the contents of a string in form f; as the bare
 * name of a free member.  INGLE_UNSUP: too many states. */
struct grammar_piece grammar_f_meet_raw(struct form_meeting *m, bool *empty);
struct grammar_piece grammar_f_meet_string(struct form_meeting *m, struct grammar_form *f,
                                           bool *empty);
struct grammar_piece grammar_f_meet_name(struct form_meeting *m, struct grammar_form *f,
                                         bool *empty);
struct grammar_piece grammar_f_meet(struct grammar_builder *b, const struct grammar_form *f,
                                    const struct meet_part *part, size_t n, bool *empty);
/* What a free name is made of. */
void grammar_f_name_chars(struct grammar_form *f, bool first, struct grammar_class *c);

#endif
