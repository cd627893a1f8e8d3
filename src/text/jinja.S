/* SPDX-License-Identifier: Apache-2.0
 * Templates that write what the renderers write, for files that others read.  The names of the files come from the
 * build. */
    .section .rodata
    .globl text_jinja_gemma4
    .hidden text_jinja_gemma4
    .type text_jinja_gemma4, %object
text_jinja_gemma4:
    .incbin GEMMA4_JINJA
    .size text_jinja_gemma4, . - text_jinja_gemma4
    .globl text_jinja_gemma4_end
    .hidden text_jinja_gemma4_end
    .type text_jinja_gemma4_end, %object
text_jinja_gemma4_end:
    .byte 0
    .size text_jinja_gemma4_end, 1

    .globl text_jinja_deepseek4
    .hidden text_jinja_deepseek4
    .type text_jinja_deepseek4, %object
text_jinja_deepseek4:
    .incbin DEEPSEEK4_JINJA
    .size text_jinja_deepseek4, . - text_jinja_deepseek4
    .globl text_jinja_deepseek4_end
    .hidden text_jinja_deepseek4_end
    .type text_jinja_deepseek4_end, %object
text_jinja_deepseek4_end:
    .byte 0
    .size text_jinja_deepseek4_end, 1
    .section .note.GNU-stack, "", %progbits
