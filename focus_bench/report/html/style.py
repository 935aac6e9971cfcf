"""The style sheet of the HTML report: one column on a phone, two on a screen, light and dark."""

from focus_bench.report.figures.theme import css_variables

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 var(--font);
 overflow-wrap:anywhere}
main,header,nav ul,footer{max-width:1240px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px;letter-spacing:-.015em}
h2{font-size:21px;margin:44px 0 14px;letter-spacing:-.01em;scroll-margin-top:60px}
h3{font-size:17px;margin:0 0 4px;letter-spacing:-.005em}
p{margin:0 0 8px}
a{color:var(--accent)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--accent);
 outline-offset:2px}
.sub{color:var(--muted);margin:0 0 18px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:12px;
 margin:0 0 16px;padding:0;list-style:none}
.tiles li{background:var(--surface);border:1px solid var(--line);border-radius:10px;
 padding:12px 16px 13px}
.tiles b{display:block;font-size:26px;line-height:1.25;letter-spacing:-.02em;
 font-variant-numeric:tabular-nums}
.tiles span{color:var(--muted);font-size:14px;line-height:1.4;display:block}
.tiles .bad b{color:var(--bad)}
.chips{display:flex;flex-wrap:wrap;gap:6px 8px;margin:0 0 8px;padding:0;list-style:none;
 font-size:13.5px}
.chips li{background:var(--warn-surface);color:var(--warn);border-radius:6px;padding:2px 9px}
.key li{background:none;color:var(--ink);padding:2px 10px 2px 0}
.key i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;
 vertical-align:-1px}
nav{position:sticky;top:0;z-index:2;background:var(--page);border-bottom:1px solid var(--line);
 margin-top:14px}
nav ul{display:flex;gap:4px 20px;list-style:none;overflow-x:auto;white-space:nowrap;
 font-size:14.5px;padding-top:9px;padding-bottom:9px}
nav a{text-decoration:none}
nav a:hover{text-decoration:underline}
.figures{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:18px;
 grid-auto-flow:dense}
figure,.card{margin:0;background:var(--surface);border:1px solid var(--line);border-radius:12px;
 padding:18px 20px 14px;scroll-margin-top:60px;min-width:0}
figure.wide{grid-column:1/-1}
figure h3 a{color:inherit;text-decoration:none}
figcaption>p,.card p.line{color:var(--muted);font-size:14.5px}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));
 gap:14px 26px;margin:12px 0 8px;align-items:start}
.panels svg{display:block;width:100%;height:auto;max-width:470px;overflow:visible}
figure:not(.wide) .panels{grid-template-columns:minmax(0,1fr)}
figure:not(.wide) .panels svg{max-width:470px}
svg *{stroke-linejoin:round;stroke-linecap:butt}
.rests{font-size:13px;color:var(--muted);border-left:3px solid var(--warn);padding-left:9px;
 margin:10px 0 8px}
.left-out{font-size:13px;color:var(--muted)}
.label{color:var(--warn);font-size:14px;margin:0 0 4px}
.bad{color:var(--bad)}
.lead{font-weight:600}
.line{margin:0 0 4px}
.scroll{overflow-x:auto;max-width:100%;margin:8px 0 14px}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;
 overflow-wrap:normal}
caption{text-align:left;color:var(--muted);padding:2px 0 5px}
th,td{padding:5px 14px 5px 0;text-align:right;white-space:nowrap}
th:last-child,td:last-child{padding-right:4px}
th{color:var(--muted);font-weight:600;border-bottom:1px solid var(--line);vertical-align:bottom;
 white-space:normal}
tbody tr+tr td{border-top:1px solid var(--grid)}
.name{text-align:left}
details{margin:6px 0 0}
summary{cursor:pointer;color:var(--accent);font-size:14px}
details[open]>summary{margin-bottom:8px}
.points details{border-top:1px solid var(--grid);padding:7px 0;margin:0}
dl{display:grid;grid-template-columns:minmax(110px,max-content) minmax(0,1fr);gap:3px 18px;margin:0;
 font-size:14.5px}
dt{color:var(--muted)}
dd{margin:0}
.card+.card{margin-top:16px}
ul.plain{margin:0;padding-left:20px}
footer{color:var(--muted);font-size:13.5px;padding-top:36px;padding-bottom:40px}
@media (max-width:860px){.figures{grid-template-columns:minmax(0,1fr)}}
@media (max-width:520px){
 main,header,nav ul,footer{padding-left:12px;padding-right:12px}
 header{padding-top:22px}
 h1{font-size:24px}
 figure,.card{padding:14px 10px 12px;border-radius:10px}
 .tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}
 .tiles li{padding:10px 11px}
 .tiles b{font-size:21px}
 dl{grid-template-columns:minmax(0,1fr);gap:0}
 dd{margin-bottom:6px}
}
@media print{nav{display:none}figure,.card{break-inside:avoid}}
"""


def style_sheet() -> str:
    """CSS for the page; the colours are custom properties, which the figures use as well."""
    font = "--font:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;"
    dark = css_variables("dark")
    return (
        f":root{{color-scheme:light dark;{font}{css_variables('light')}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{_RULES}"
    )
