"""page_shapes.py - hostile answers for the web page: name: text."""

MARKUP = """<img src=x onerror="window.bad=1"> <script>window.bad=1</script> <svg onload="window.bad=1"></svg>
<iframe src="http://evil.example/"></iframe> <a href="javascript:window.bad=1">x</a> [y](javascript:window.bad=1)
[z](data:text/html,<script>1</script>) ![p](http://evil.example/p.png) <style>*{display:none}</style>
[t](http://a.example/"onmouseover="window.bad=1) <http://evil.example/> <form action=//evil.example><input name=x>
$\\href{javascript:window.bad=1}{x}$ $\\url{http://evil.example}$ $\\includegraphics{http://evil.example/i.png}$
$\\htmlStyle{position:fixed}{x}$ $\\htmlClass{acts}{x}$ $$\\text{<img src=x onerror=window.bad=1>}$$

```"><img src=x onerror=window.bad=1>
<img src=x onerror=window.bad=1>
```
<math><mtext><table><mglyph><style><img src=x onerror=window.bad=1>"""

# Languages that highlight.js of Debian 12 knows.
LANGUAGES = """1c abnf accesslog ada angelscript apache applescript arcade arduino armasm asciidoc aspectj autohotkey awk
basic bash bnf brainfuck c cal capnproto ceylon clean clojure cmake coffeescript coq cos cpp crmsh crystal cs csp css d
dart delphi diff django dns dockerfile dos dts dust ebnf elixir elm erb erlang excel fix flix fortran fsharp gams gauss
gcode gherkin glsl gml go golo gradle groovy haml handlebars haskell haxe hsp http hy inform7 ini irpf90 isbl java
javascript json julia kotlin lasso latex ldif leaf less lisp livescript llvm lsl lua makefile markdown mathematica
matlab maxima mel mercury mipsasm mizar mojolicious monkey moonscript n1ql nginx nim nix nsis objectivec ocaml openscad
oxygene parser3 perl pf pgsql php plaintext pony powershell processing profile prolog properties protobuf puppet
purebasic python q qml r reasonml rib roboconf routeros rsl ruby ruleslanguage rust sas scala scheme scilab scss shell
smali smalltalk sml sqf sql stan stata step21 stylus subunit swift taggerscript tap tcl tex thrift tp twig typescript
vala vbnet vbscript verilog vhdl vim x86asm xl xml xquery yaml zephir""".split()
TANGLE = "/* \" ' ` { ( [ <a b=\"c\"> #{x} ${y} \\(z) // -- # ; % q{ <<E @f $g :h 0x1p-3 1e9 ?i:j =~ s/k/l/ */ fn(m) => n | o\n"

HOSTILE = {
    "backticks": "x" + "`" * 200000,
    "growing runs": "".join("`" * i + "a" for i in range(1, 600)),
    "brackets": "x" + "[" * 100000 + "](" * 50000,
    "stars": "*" * 100000 + "a" + "*_" * 50000,
    "pairs": "**a" * 30000 + "_b" * 30000 + "~~c" * 20000,
    "quotes": ">" * 10000 + " x",
    "quotes by line": "\n".join("> " * n + "x" for n in range(0, 800)),
    "lists": "- " * 10000 + "x",
    "lists by line": "\n".join("  " * n + "- x" for n in range(1500)),
    "numbers": "\n".join(f"{n}. x" for n in range(20000)),
    "one line": "word " * 200000,
    "one word": "w" * 1000000,
    "code, one line": "```c\n" + "int x = 1; " * 90000 + "\n```",
    "code": "```python\n" + "def f(x):\n    return 'a' + \"b\" # c\n" * 5000 + "```",
    "table": "|" + "a|" * 2000 + "\n|" + "--|" * 2000 + "\n" + ("|" + "b|" * 2000 + "\n") * 10,
    "long table": "|a|b|\n|--|--|\n" + "|1|**2**|\n" * 8000,
    "links": "http://a.example/x?" * 8000,
    "dollars": "$" * 50000 + "$x" * 30000,
    "formulas": "$x_1^2$ " * 20000,
    "one formula": "$$" + "\\frac{1}{" * 900 + "x" + "}" * 900 + "$$",
    "macro": "$$\\def\\a{xxxxxxxxxx}\\def\\b{\\a\\a\\a\\a\\a\\a}\\def\\c{\\b\\b\\b\\b\\b\\b\\b}\\c\\c\\c\\c\\c\\c$$ " * 30,
    "rules": "$\\rule{100000em}{100000em}$ and $\\kern9999em x$ ",
    "fences": "```\n~~~\n" * 5000,
    "entities": "&amp;&#x41;&lt;" * 10000,
    "right to left": "\u202e" + "\u05e9\u05dc\u05d5\u05dd " * 20000,
    "zalgo": "a" + "\u0301" * 20000,
    "blank lines": "\n" * 100000 + "x",
    "hashes": "# a" + " " * 50000 + "x\n" + "#" * 50000,
    "backslashes": "\\" * 100000,
    "references": "[a]: http://b.example/\n" * 5000 + "[a] " * 5000,
    "5,000 columns": "|" + "a|" * 5000 + "\n|" + "-|" * 5000 + "\n" + ("|" + "**b**|" * 5000 + "\n") * 4,
    "ragged table": "|a|b|\n|-|-|\n" + "".join("|" * (n % 300 + 2) + "\n" for n in range(3000)),
    "100,000 links": "[a](http://b.example/) " * 100000,
    "links in links": "[" * 9 + "a" + "](http://b.example/)" * 9 + (" ![[a](http://b.example/)](http://c.example/)" * 5000),
    "unclosed markup": "<div><p><b><table><tr><td><!-- <![CDATA[ <a href='" * 20000,
    "comments": "<!--" * 100000,
    "emoji": "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d" * 60000,
    "flags": "\U0001F1E9\U0001F1EA\U0001F3F4\U000E0067\U000E0062\U000E007F" * 20000,
    "100,000 marks": "a" + "\u0301" * 100000,
    "marks on each letter": ("x" + "\u0338\u0489" * 15 + " ") * 8000,
    "emphasis": "*_" * 30000 + "a" + "_*" * 30000,
    "emphasis, closed": "***a** b* __c_ d_ ~~e~ f~~ " * 20000,
    "definitions": "".join(f"[r{n}]: http://b.example/{n}\n" for n in range(5000)) + "".join(f"[r{n}] [x][r{n}] " for n in range(5000)),
    "notes": "".join(f"word[^{n}] " for n in range(5000)) + "\n\n" + "".join(f"[^{n}]: note {n}\n" for n in range(5000)),
    "entities within": "&amp;" * 1 + "&" + "amp;" * 100000 + "&#" + "9" * 100000 + ";",
    "10,000 formulas": "".join(f"$\\frac{{{n}}}{{\\sqrt{{x_{n}}}}}$ and $$\\sum_{{i=0}}^{{{n}}} i$$\n\n" for n in range(5000)),
    "formula of 200 KB": "$$" + "a + \\sqrt{b} + " * 14000 + "c$$",
    "formula of 200 KB, lines": "\\[\n" + "a &= \\sqrt{b} + \\int_0^1 x \\\\\n" * 7000 + "\\]",
    "matrix": "$$\\begin{pmatrix}" + ("1 & " * 60 + "1 \\\\ ") * 16 + "\\end{pmatrix}$$\n\n" * 1,
    "matrices": ("$$\\begin{pmatrix}" + ("1 & " * 30 + "1 \\\\ ") * 20 + "\\end{pmatrix}$$\n\n") * 40,
    "code, markup": "```xml\n" + "<a b='c' d=\"e\"><!-- f --><g>&amp;</g>" * 8 + ("\n<x y='z'>" * 60000) + "\n```",
    "code, perl": "```perl\n" + "s/a{{{(b)}/$x{y}/gex if m{\\Q$z\\E}; print <<E . q(" * 16000 + "\n```",
    "code, lines of perl": "```perl\n" + "my ($a, @b) = s/(x+x+)+y/$1/g ? qw(a b) : m{^\\s*#} unless /=~/;\n" * 15000 + "```",
    "code, swift": "```swift\n" + "let x = \"\\(a(\"\\(b(\"\\(c)\"))\"))\" /* /* /* */ */ */\n" * 20000 + "```",
    "code, mathematica": "```mathematica\n" + "Plot[Sin[x] + f[#1, #2]& /@ {a, b}, {x, 0, 2 Pi}] (* c *)\n" * 17000 + "```",
    "code, latex": "```latex\n" + "\\begin{a}\\verb|x|\\frac{$b$}{%c\n" * 30000 + "```",
    "code, css": "```css\n" + "a:not(b)>c~d[e='f']::g{h:calc(1px + 2em);" * 25000 + "\n```",
    "code, markdown": "```markdown\n" + "**a _b [c](d) `e` ~~f~~ > g\n" * 35000 + "```",
    "code, unknown": "```" + "x" * 70 + "\n" + "abc\n" * 250000 + "```",
    "many fences": "```js\nconst a = 1;\n```\n" * 6000,
    "headings": "# a\n" * 20000,
    "rules of lines": "---\n\n***\n\n" * 10000,
    "hard breaks": "a\\\nb  \n" * 20000,
    "quote and list": "".join("> " * (n % 7) + "- " * (n % 5) + "x\n" for n in range(20000)),
    "list, wide and deep": "".join("   " * (n % 12) + "1. `a` **b** $c$\n" for n in range(15000)),
    "task lists": "- [ ] a\n  - [x] b\n" * 8000,
    "setext": "a\n=\nb\n-\n" * 15000,
    "indented code": "    x = 1\n\n" * 15000,
    "autolinks": "<http://b.example/a> http://c.example/" + "%41" * 20000 + " https://d.example/?" + "a=b&" * 20000,
    "controls": "".join(chr(c) for c in range(1, 32)) * 3000 + "\x00\ufffe\ufdd0" * 3000,
    "line separators": "a\u2028b\u2029c\u0085d\x0b" * 20000,
    "embeddings": "\u202a\u202b\u2066\u2067" * 15000 + "x" + "\u202c\u2069" * 30000,
    "both ways": "abc \u05d0\u05d1 12 \u0627\u0628 " * 20000,
    "no break": "a\u00a0" * 200000,
    "zero width": "a\u200b\u2060\ufeff" * 80000,
    "tibetan": "\u0f40\u0f71\u0f72\u0f74\u0f7a" * 30000,
    "arabic ligatures": "\ufdfa\u0644\u0627\u0640" * 40000,
    "hangul": "\u1112\u1161\u11ab" * 60000,
    "wide letters": "\u9f98\U0002A6A5" * 100000,
    "tabs": "\t" * 100000 + "x\t" * 50000,
    "mixed": "> - **a** $x$ `b`\n>   1. [c](http://d.example/) \u05d0\u0301\n\n|e|f|\n|-|-|\n|$g$|`h`|\n\n```py\nx\n```\n" * 1500,
    "lone surrogates": "\ud800a\udc00" * 30000,
    "carriage returns": "a\r\n- b\r- c\r\n\r\n" * 15000,
    "10,000 columns": "|" + "a|" * 10000 + "\n|" + "-|" * 10000 + "\n" + ("|" + "b|" * 10000 + "\n") * 3,
    "bars": "|\n|-\n" * 20000 + "|||||" * 20000,
    "notes in notes": "".join(f"[^{n}]: x[^{n + 1}] [^{n}]: y\n" for n in range(10000)) + "[^" * 50000,
    "autolinks, open": "<http://a.example/" * 20000 + "http://" * 20000 + "https://a.@:" * 20000,
    "one address": "http://a.example/" + "a" * 500000 + "?" + "b" * 300000,
    "addresses of mail": "a.b@c.example " * 20000 + "a@" * 50000 + "a." * 50000 + "@",
    "entities, long": "&CounterClockwiseContourIntegral;&NotNestedGreaterGreater;" * 10000,
    "one heading": "# " + "word **b** `c` " * 30000 + "\n" + "word " * 20000 + "\n" + "=" * 20000,
    "100,000 blocks": "a\n\n" * 100000,
    "deep tags": "<div>" * 20000 + "x" + "</div>" * 20000,
    "emphasis and code": "*_*_`" * 40000,
    "three emphases": "*a **b ***c " * 20000 + "*** ** *" * 10000,
    "formulas within": "$a \\text{$b \\text{$c$}$}$ " * 5000 + "$$\\text{" * 5000,
    "addresses in formulas": ("$\\href{http://a.example/}{x}$ $\\includegraphics[height=1em]{http://a.example/x.png}$ "
                              "$\\url{http://a.example}$ ") * 4000,
    "braces": "$$" + "\\underbrace{\\overbrace{\\left(" * 300 + "x" + "\\right)}}" * 300 + "$$\n\n",
    "scripts": "$$" + "x^{y_{" * 1000 + "}}" * 1000 + "$$ $" + "x'" * 1500 + "$",
    "array": "$$\\begin{array}{" + "c|" * 1500 + "}" + "1&" * 400 + "\\\\\\hline" * 60 + "\\end{array}$$\n\n",
    "many sizes": ("$$" + "".join(f"\\sqrt[{n}]{{\\Huge \\frac{{\\color{{red}}{{{n}}}}}{{\\tiny x}}}}" for n in range(60))
                   + "$$\n\n") * 60,
    "formula, letters": "$" + "\u05d0\u0301\u9f98\U0001F468" * 900 + "$ " + "$\u05d0\u0301$ " * 5000,
    "code of each language": "".join(f"```{n}\n{TANGLE * 8}```\n" for n in LANGUAGES),
    "code of each language, open": "".join(f"~~~{n}\n{TANGLE * 3}~~~~ x\n~~~\n" for n in LANGUAGES) + "~~~js\n" + TANGLE * 2000,
    "code, both ways": "```c\n" + "/* \u202e } \u2066if (admin)\u2069 \u2066 begin \u05e9\u05dc\u05d5\u05dd */ int x; \u202d\n" * 8000
                       + "```",
    "code, minified": "```js\n" + "a(b,{c:d=>[e,`${f}`]});" * 40000 + "\n```",
    "code, nested swift": "```swift\n" + "".join("let \"\\(" * (n % 40) + "\n" for n in range(8000)) + "```",
    "code, open templates": "```js\n" + "`${" * 60000 + "\n" + "`${\n" * 20000 + "```",
    "code, open strings": "```python\n" + ("f'{" + '"' * 3 + "{" + "'" * 3 + "\n") * 20000 + "```",
    "code, deep JSON": "```json\n" + "[\n" * 30000 + '{"a":' * 30000 + "\n```",
    "code, lisp": "```lisp\n" + "(a '(b " * 40000 + "\n" + "(\n" * 40000 + "```",
    "code, php in html": "```html\n" + "<script><?php echo '<style>a{b:c}</style>'; ?>`${d}`</script>\n<style>e{f:'\n" * 10000 + "```",
    "code in lists": "".join(f"{'  ' * (n % 5)}- ```js\n{'  ' * (n % 5)}  const a = 1;\n{'  ' * (n % 5)}  ```\n" for n in range(8000)),
    "code in quotes": "> ```js\n> const a = `1`;\n> ```\n" * 8000,
    "fences, growing": "\n".join("`" * n + "js" for n in range(3, 800)),
    "markers": "1) a\n* b\n+ c\n- d\n2. e\n" * 8000,
    "open links": "[**a*_b](<" * 15000 + "[x](http://a.example/ \"" * 10000,
    "titles of links": "[a](http://a.example/ \"" + "b' " * 1000 + "\") " + "[a](http://a.example/?&lpar;%28 'b') " * 10000,
    "images": "![" * 5000 + "a" + "](http://a.example/i.png)" * 5000 + "![a](http://a.example/i.png)" * 10000,
    "keycaps": "1\ufe0f\u20e3#\ufe0f\u20e3" * 40000,
    "all letters": " ".join("".join(chr(c) for c in range(n, n + 32))
                            for n in (*range(0xa0, 0xd800, 32), *range(0xf900, 0x20000, 32))),
    "soft hyphens": "a\u00ad" * 200000,
    "ideographs, no break": "\u9f98\u2060" * 100000,
    "thai": "\u0e01\u0e33\u0e19\u0e49\u0e33" * 50000,
    "devanagari": "\u0915\u094d\u0937\u094d\u0930\u093f\u0902" * 40000,
    "musical": "\U0001D15F\U0001D165\U0001F3FF\u200d" * 30000,
    "NULs": "\x00" * 200000 + "a\x00" * 50000,
    "lines of one letter": "a\n" * 100000,
    "long lines of table": "|a|b|\n|-|-|\n" + ("|" + "word " * 700 + "|`c` **d**|\n") * 60,
    "markup that runs": MARKUP * 20,
    "answer": ("## Part\n\nSome **bold** text with `code` and a [link](https://a.example/).\n\n- one\n- two\n\n"
               "```js\nconst x = 1;\n```\n\n") * 1500,
}
