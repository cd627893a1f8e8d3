/* SPDX-License-Identifier: Apache-2.0
 * The program that decodes (child/), as it runs: CHILD_FILE comes from the build. */
    .section .rodata
    .balign 64
    .globl media_child
    .hidden media_child
    .type media_child, %object
media_child:
    .incbin CHILD_FILE
    .size media_child, . - media_child
    .globl media_child_end
    .hidden media_child_end
    .type media_child_end, %object
media_child_end:
    .byte 0
    .size media_child_end, 1
    .section .note.GNU-stack, "", %progbits
