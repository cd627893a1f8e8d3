/*
 * recipe - which code a tensor gets: recipes by name as tables, rows that do not divide.
 */
#ifndef INGLE_TOOL_RECIPE_H
#define INGLE_TOOL_RECIPE_H

#include "base/str.h"
#include "io/io.h"

struct tool_recipe;

/* By a code's name ("Q4_K") or a recipe's ("Q4_K_M"), in any case; NULL: unknown. */
const struct tool_recipe *tool_recipe_find(const char *name);
/* All names, separated by blanks. */
void tool_recipe_names(struct str *out);
const char *tool_recipe_name(const struct tool_recipe *r);
uint32_t tool_recipe_file_type(const struct tool_recipe *r); /* general.file_type */
uint32_t tool_recipe_base(const struct tool_recipe *r);

/* A code by its name in any case; false: none that quant_fit() writes. */
bool tool_recipe_code(const char *name, uint32_t *type);

/* What the rules count while they see the tensors of a file in order. */
struct tool_recipe_model {
    uint64_t n_layers, heads_per_kv; /* 0: not known */
    size_t n_v, i_v;                 /* attn_v tensors in all, and so far */
    bool has_output, has_importance;
};
/* Whether a tensor stays as it is: norms, routers, tables, hyper-connections, sinks, biases. */
bool tool_recipe_keeps(const struct io_tensor *t);
/* The code of a tensor that does not stay; call it once for each tensor in the file's order. */
uint32_t tool_recipe_choose(const struct tool_recipe *r, struct tool_recipe_model *m,
                            const struct io_tensor *t);
/* Whether the recipe leaves this tensor as it is; whether it leaves any. */
bool tool_recipe_stays(const struct tool_recipe *r, const struct io_tensor *t);
bool tool_recipe_is_partial(const struct tool_recipe *r);
/* The code that takes rows of n elements: type itself, or a similar one of smaller blocks, at last
 * F16. */
uint32_t tool_recipe_fallback(uint32_t type, uint64_t n);

#endif
