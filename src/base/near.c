/* SPDX-License-Identifier: Apache-2.0 */
#include "base/near.h"

#include <string.h>

enum { N = 40 };

static int length(const char *s)
{
    int n = 0;
    while (n < N && s[n])
        n++;
    return n;
}

/* Letters to insert, delete, replace or swap to get from a to b. */
static int distance(const char *a, const char *b)
{
    int d[N + 1][N + 1];
    const int na = length(a), nb = length(b);
    for (int i = 0; i <= na; i++)
        for (int j = 0; j <= nb; j++) {
            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
            best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[na][nb];
}

const char *near_word(const char *const *words, size_t n, const char *word)
{
    const char *best = NULL;
    int least = 1 + length(word) / 3;
    for (size_t i = 0; i < n; i++) {
        int d = distance(word, words[i]);
        if (d > 1 && strlen(word) > 2 && strncmp(words[i], word, strlen(word)) == 0)
            d = 1; /* a beginning of it */
        if (d < least + (best == NULL)) {
            best = words[i];
            least = d;
        }
    }
    return best;
}
