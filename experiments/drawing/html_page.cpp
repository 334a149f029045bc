#include "experiments/drawing/html_page.h"

#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

const char* const kStyle = R"(
:root{color-scheme:light dark;--page:#f4f6f8;--card:#ffffff;--text:#1f2933;--soft:#52606d;--tick:#66727f;--grid:#e4e7eb;--edge:#d5dae1;--box:#f7f9fb;--good:#1d8a5f;--bad:#c2571a;--line:#334155;--second:#b42346;--idle:#e3e7ec}
@media screen and (prefers-color-scheme:dark){:root{--page:#12161b;--card:#1b2129;--text:#e6eaef;--soft:#a9b4c0;--tick:#94a0ad;--grid:#2c343e;--edge:#36404b;--box:#222a33;--good:#5cc79b;--bad:#f0985f;--line:#cbd5e1;--second:#ff8fa3;--idle:#333c48}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
header h1{font-size:26px;margin:0;letter-spacing:-.01em}
header p{margin:2px 0 18px;color:var(--soft);overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 4px}
.lead{color:var(--soft);margin:0 0 14px;font-size:14px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:16px}
.tile,.card{background:var(--card);border:1px solid var(--edge);border-radius:12px}
.tile{padding:12px 13px}
.tile span{display:block;color:var(--soft);font-size:12.5px}
.tile b{display:block;font-size:19px;font-weight:650;line-height:1.3;overflow-wrap:anywhere}
.tile small{color:var(--soft);font-size:12.5px;overflow-wrap:anywhere}
.card{padding:18px 20px;margin-bottom:16px}
.end{border-left:5px solid var(--soft)}.end.wrong{border-left-color:var(--bad)}.end.wrong h2{color:var(--bad)}
.end p{margin:4px 0 0;overflow-wrap:anywhere}
i.job{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:7px;vertical-align:-1px}
.why td:last-child,.why th:last-child{text-align:left}
.scroll{overflow-x:auto}
.pair{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:16px}
.narrow{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin-bottom:10px;font-size:12px}
.legend i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:5px;vertical-align:-1px}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:7px 12px;align-items:center;font-size:12.5px}
.bar{display:flex;height:22px}
.bar i{font:11px/22px system-ui,sans-serif;text-align:center;color:#16202b;overflow:hidden;white-space:nowrap}
.bars .sum{color:var(--tick);font-size:12px;text-align:right}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:7px 12px;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--soft);font-weight:600;font-size:12.5px}
th:first-child,td:first-child{text-align:left;padding-left:2px}
th.group{text-align:center;border-left:1px solid var(--grid)}
td.first,th.first{border-left:1px solid var(--grid)}
tr.total td{font-weight:650}
tr:last-child td{border-bottom:0}
.good{color:var(--good)}.bad{color:var(--bad)}.none{color:var(--tick)}
svg{display:block;max-width:100%;height:auto;font-family:inherit}
svg.chart{width:100%}
svg.plan{margin:0 auto}
svg text{font-size:12px;fill:var(--text)}
svg .title{font-size:14px;font-weight:650;fill:var(--text)}
svg .tick{font-size:11.5px;font-weight:400;fill:var(--tick)}
svg .label{font-size:12.5px;fill:var(--text)}
svg .mono{font:11.5px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--soft)}
svg .inbar{font-size:11px;fill:#16202b}
svg .mark{stroke:var(--soft);stroke-dasharray:3 4}
svg .grid{stroke:var(--grid)}svg .axis{stroke:var(--edge)}
svg .box{fill:var(--box);stroke:var(--edge)}
svg .arrow{fill:none;stroke:var(--soft);stroke-width:1.6}svg .arrowhead{fill:var(--soft)}
.gantt{margin-top:10px}
.gantt svg{width:100%}
.gantt svg>rect:first-child{fill:var(--box)}
.gantt svg text[fill="#1f2933"]{fill:var(--text)}
.gantt svg text[fill="#52606d"]{fill:var(--tick)}
.gantt svg text[fill="#16202b"]{fill:#16202b;font-size:11px}
.gantt svg rect[fill="#e3e7ec"]{fill:var(--idle)}
.gantt svg line{stroke:var(--grid)}
.gantt svg rect[stroke="#fff"]{stroke:var(--box)}
ul.notes{margin:0;padding-left:18px;color:var(--soft);font-size:14px}
footer{color:var(--tick);font-size:13px;margin-top:22px}
@media(max-width:640px){main{padding:16px 8px 40px}.card{padding:14px 10px}.wide{display:none}.narrow{display:block}th,td{padding:6px 7px}.bars{gap:6px 7px;font-size:11.5px}}
.narrow svg{max-width:520px}
@page{margin:12mm}
@media print{*{-webkit-print-color-adjust:exact;print-color-adjust:exact}body{background:none;font-size:12px}main{max-width:none;padding:0}.card,.tile,tr,svg,.bars{break-inside:avoid}.card{padding:12px 14px}h2{break-after:avoid}.lead{break-after:avoid}.scroll{overflow:visible}table{font-size:11px}th,td{padding:4px 4px}.pair{grid-template-columns:1fr 1fr}.tiles{grid-template-columns:repeat(auto-fit,minmax(88px,1fr));gap:8px}.tile{padding:8px 9px}.tile b{font-size:15px}}
)";

}  // namespace

std::string html_page(const HtmlPage& page) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" +
         (page.reload_s > 0
              ? "<meta http-equiv=\"refresh\" content=\"" + std::to_string(page.reload_s) + "\">\n"
              : std::string()) +
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'" +
         (page.script.empty() ? "" : "; script-src 'unsafe-inline'") +
         "\">\n"
         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>" +
         escape_xml(page.title) + " · millrace</title>\n<style>" + kStyle +
         "</style>\n</head>\n<body>\n<main>\n" + page.body + "<footer>" + page.footer +
         "</footer>\n</main>\n" +
         (page.data.empty()
              ? ""
              : "<script type=\"application/json\" id=\"millrace-data\">" + page.data + "</script>\n") +
         (page.script.empty() ? "" : "<script>" + page.script + "</script>\n") + "</body>\n</html>\n";
}

std::string html_card(const std::string& heading, const std::string& lead, const std::string& content) {
  return "<section class=\"card\"><h2>" + heading + "</h2><p class=\"lead\">" + lead + "</p>" + content +
         "</section>\n";
}

std::string html_tile(const std::string& label, const std::string& value, const std::string& detail) {
  return "<div class=\"tile\"><span>" + label + "</span><b>" + escape_xml(value) + "</b><small>" +
         escape_xml(detail) + "</small></div>";
}

}  // namespace millrace
