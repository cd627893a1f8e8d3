/* SPDX-License-Identifier: Apache-2.0 */
/* The spectrogram of Gemma's encoder: windows of 320 samples every 160, the magnitudes of 257
 * frequencies, 128 triangles on the HTK scale, ln(x + 0.001). */
#include "media/media.h"

#include "base/mem.h"

#include <math.h>

enum { WINDOW = 320, HOP = 160, N_FFT = 512, N_FREQ = N_FFT / 2 + 1 };
static const double PI = 3.14159265358979323846;

/* owns nothing: one block of memory */
struct work {
    double re[N_FFT], im[N_FFT], cosine[N_FFT / 2], sine[N_FFT / 2];
    double magnitude[N_FREQ];
    float window[WINDOW];
    double edge[MEDIA_MEL + 2]; /* Hz */
};

static void init(struct work *w)
{
    const double top = 2595 * log10(1 + 8000.0 / 700);
    for (int i = 0; i < WINDOW; i++)
        w->window[i] = (float)(0.5 - 0.5 * cos(2 * PI * i / WINDOW));
    for (int i = 0; i < N_FFT / 2; i++) {
        w->cosine[i] = cos(2 * PI * i / N_FFT);
        w->sine[i] = -sin(2 * PI * i / N_FFT);
    }
    for (int i = 0; i < MEDIA_MEL + 2; i++)
        w->edge[i] = 700 * (pow(10, top * i / (MEDIA_MEL + 1) / 2595) - 1);
}

/* Radix 2, in place. */
static void transform(struct work *w)
{
    for (int i = 1, j = 0; i < N_FFT; i++) {
        int bit = N_FFT >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            const double re = w->re[i]; /* im is zero so far */
            w->re[i] = w->re[j];
            w->re[j] = re;
        }
    }
    for (int half = 1; half < N_FFT; half *= 2)
        for (int at = 0; at < N_FFT; at += 2 * half)
            for (int k = 0; k < half; k++) {
                const int a = at + k, b = a + half, t = k * (N_FFT / 2 / half);
                const double re = w->re[b] * w->cosine[t] - w->im[b] * w->sine[t];
                const double im = w->re[b] * w->sine[t] + w->im[b] * w->cosine[t];
                w->re[b] = w->re[a] - re;
                w->im[b] = w->im[a] - im;
                w->re[a] += re;
                w->im[a] += im;
            }
}

/* The triangle of a band, by frequency: up from its first edge, down to its third. */
static double triangle(const double *edge, double hz)
{
    const double up = (hz - edge[0]) / (edge[1] - edge[0]);
    const double fall = (edge[2] - hz) / (edge[2] - edge[1]);
    return fmax(0, fmin(up, fall));
}

static void one_frame(struct work *w, const float *samples, size_t n, size_t frame, float *mel)
{
    const double hz = (double)MEDIA_RATE / N_FFT;
    for (size_t i = 0; i < N_FFT; i++) {
        const size_t at = frame * HOP + i; /* in the sound with 160 zeros in front */
        w->re[i] = i < WINDOW && at >= HOP && at - HOP < n
                       ? (double)samples[at - HOP] * (double)w->window[i]
                       : 0;
        w->im[i] = 0;
    }
    transform(w);
    for (int k = 0; k < N_FREQ; k++)
        w->magnitude[k] = sqrt(w->re[k] * w->re[k] + w->im[k] * w->im[k]);
    for (int m = 0; m < MEDIA_MEL; m++) {
        double sum = 0;
        const int from = (int)(w->edge[m] / hz);
        for (int k = from; k < N_FREQ && k * hz < w->edge[m + 2]; k++)
            sum += w->magnitude[k] * triangle(w->edge + m, k * hz);
        mel[m] = (float)log(sum + 0.001);
    }
}

ingle_status media_mel(const float *samples, size_t n, float *mel, struct err *err)
{
    struct work *w = mem_alloc(sizeof *w);
    if (!w)
        return err_set(err, INGLE_NOMEM, "no memory for a spectrogram");
    init(w);
    const size_t frames = (size_t)media_mel_frames(n);
    for (size_t f = 0; f < frames; f++)
        one_frame(w, samples, n, f, mel + f * MEDIA_MEL);
    mem_free(w);
    return INGLE_OK;
}
