// The page that zooms: data in compact arrays, a canvas, some lines of JavaScript.
#include <algorithm>
#include <cmath>

#include "experiments/trace/civil_time.h"
#include "experiments/trace/timeline_plot.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr std::size_t kPageColumns = 65536;

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve(bytes.size() * 4 / 3 + 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < n ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) out += k <= n ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

/// Seven bits a byte, the lowest first.
void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 128) {
    out += static_cast<char>((value & 127) | 128);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

Json table_json(const std::optional<SampleTable>& table, std::int64_t first) {
  if (!table) return {};
  Json times = Json::array(), columns = Json::object();
  for (std::int64_t time : table->times) times.push_back(static_cast<double>(time - first) / 1e9);
  for (std::size_t c = 0; c < table->columns.size(); ++c) {
    Json values = Json::array();
    for (double value : table->values[c]) values.push_back(std::isfinite(value) ? Json(value) : Json());
    columns[table->columns[c]] = std::move(values);
  }
  return Json::object({{"t", std::move(times)}, {"columns", std::move(columns)}});
}

/// Starts as steps from the one before, and lengths, in microseconds: three to six bytes an event.
Json exact_group(const TimelineGroup& group, std::int64_t first, Problems& problems) {
  std::vector<std::string> bytes(kEventNames.size());
  std::vector<std::int64_t> last(kEventNames.size()), count(kEventNames.size());
  const Result<EventCounts> counts = for_each_event(group.file, [&](const TraceEvent& event) {
    const std::int64_t start = (event.start - first) / 1000;
    append_varint(bytes[event.type],
                  static_cast<std::uint64_t>(std::max<std::int64_t>(0, start - last[event.type])));
    append_varint(bytes[event.type], static_cast<std::uint64_t>((event.end - event.start) / 1000));
    last[event.type] = std::max(last[event.type], start);
    ++count[event.type];
  });
  if (!counts) append(problems, counts.problems());
  Json types = Json::array();
  for (std::size_t t = 0; t < bytes.size(); ++t)
    types.push_back(Json::object({{"n", count[t]}, {"e", base64(bytes[t])}}));
  return types;
}

/// Shares of columns as bytes.
Json coarse_group(const TimelineGroup& group, const TimeExtent& extent, Problems& problems) {
  const auto columns = group_columns({group}, {"", extent.first, extent.last}, kPageColumns);
  if (!columns) return append(problems, columns.problems()), Json();
  Json types = Json::array();
  for (std::size_t t = 0; t < kEventNames.size(); ++t) {
    std::string bytes;
    for (float share : (*columns)[0].busy[t])
      bytes += static_cast<char>(share <= 0 ? 0 : std::clamp(static_cast<int>(share * 255), 1, 255));
    types.push_back(Json::object({{"n", (*columns)[0].events[t]}, {"c", base64(bytes)}}));
  }
  return types;
}

/// Inside <script>, "</" must not occur.
std::string script_text(const Json& json) {
  std::string text = json.dump(), out;
  for (char c : text) out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

constexpr const char* kPageHead = R"html(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>Timeline</title>
<style>
body{font:13px Helvetica,Arial,sans-serif;margin:12px;color:#222;background:#fff}
h1{font-size:17px;margin:0 0 4px}#hint{color:#666;margin:0 0 8px}canvas{display:block;width:100%;cursor:grab}
button{font:inherit;margin:0 4px 8px 0}
</style></head><body>
<h1 id="title"></h1><p id="hint"></p><div id="buttons"></div><canvas id="c"></canvas>
<script type="application/json" id="data">)html";

constexpr const char* kPageTail = R"html(</script>
<script>
"use strict";
const D=JSON.parse(document.getElementById('data').textContent),cv=document.getElementById('c'),g=cv.getContext('2d');
const TYPES=[['block read','#1f6fb4',0,0],['block write','#d62728',0,1],['open','#7b3fa0',2,0],['read','#2c9c3f',1,0],['write','#e07b00',1,1]];
const PHASES={INIT:'#4c78d8',TRAINING:'#e6b800',EVAL:'#8a4fd0',CHECKPOINT:'#d43f9c'};
const L=74,R=96,LANE=22,SH=84,GAP=16;
document.getElementById('title').textContent=D.title;document.title=D.title;
document.getElementById('hint').textContent='Wheel: zoom. Drag: move. Double click: all. Seconds since '+D.start+' UTC, '+D.events.toLocaleString('en')+' events'+(D.exact?'.':' in '+D.columns+' columns: no finer detail than that is in this page.');
function bytes(s){const b=atob(s),a=new Uint8Array(b.length);for(let i=0;i<b.length;i++)a[i]=b.charCodeAt(i);return a}
for(const grp of D.groups)for(const t of grp.types){
 if(t.c!==undefined){t.cols=bytes(t.c);continue}
 const b=bytes(t.e);let p=0,s=0;t.s=new Float64Array(t.n);t.d=new Float64Array(t.n);t.max=0;
 const v=()=>{let r=0,m=1,x;do{x=b[p++];r+=(x&127)*m;m*=128}while(x>127);return r};
 for(let i=0;i<t.n;i++){s+=v();t.s[i]=s/1e6;t.d[i]=v()/1e6;if(t.d[i]>t.max)t.max=t.d[i]}}
let a=0,b=D.length;
function below(s,x){let l=0,h=s.length;while(l<h){const m=(l+h)>>1;if(s[m]<x)l=m+1;else h=m}return l}
function panels(){const p=[];if(D.cpu)p.push(['CPU %',D.cpu,100,[['%usr','user','#2c9c3f'],['%sys','system','#d62728'],['%iowait','I/O wait','#1f6fb4'],['%idle','idle','#9a9a9a']]]);
 if(D.gpu)p.push(['GPU %',D.gpu,100,[['sm','SM %','#2c9c3f'],['mem','memory %','#e07b00']]]);
 if(D.disk)p.push(['disk MB/s',D.disk,0,[['read MB/s','read','#1f6fb4'],['written MB/s','written','#d62728']]]);return p}
const P=panels();
for(const p of P)if(!p[2]){let m=1;for(const c of p[3])for(const v of p[1].columns[c[0]]||[])if(v>m)m=v;p[2]=m*1.1}
function draw(){
 const W=cv.clientWidth,H=P.length*(SH+GAP)+D.groups.length*(3*LANE+GAP)+26+44,q=window.devicePixelRatio||1;
 cv.width=W*q;cv.height=H*q;cv.style.height=H+'px';g.setTransform(q,0,0,q,0,0);g.fillStyle='#fff';g.fillRect(0,0,W,H);g.font='11px Helvetica,Arial,sans-serif';
 const w=W-L-R,X=t=>L+(t-a)/(b-a)*w;let y=6;
 function box(h,label){g.strokeStyle='#bbb';g.strokeRect(L,y,w,h);g.save();g.translate(16,y+h/2);g.rotate(-Math.PI/2);g.fillStyle='#222';g.textAlign='center';g.fillText(label,0,0);g.restore()}
 function key(i,name,colour){g.fillStyle=colour;g.fillRect(L+w+8,y+4+12*i,10,4);g.fillStyle='#222';g.textAlign='left';g.fillText(name,L+w+22,y+10+12*i)}
 for(const [label,tab,top,curves] of P){
  g.textAlign='right';g.fillStyle='#222';g.fillText(Math.round(top),L-4,y+9);g.fillText('0',L-4,y+SH);
  g.save();g.beginPath();g.rect(L,y,w,SH);g.clip();
  curves.forEach(([c,n,col])=>{const v=tab.columns[c];if(!v)return;g.strokeStyle=col;g.beginPath();let on=false;
   const from=Math.max(0,below(tab.t,a)-1),to=Math.min(tab.t.length,below(tab.t,b)+1);
   for(let i=from;i<to;i++){if(v[i]===null){on=false;continue}const x=X(tab.t[i]),z=y+SH-Math.min(1,v[i]/top)*SH;on?g.lineTo(x,z):g.moveTo(x,z);on=true}g.stroke()});
  g.restore();curves.forEach(([c,n,col],i)=>key(i,n,col));box(SH,label);y+=SH+GAP}
 for(const grp of D.groups){
  grp.types.forEach((t,k)=>{const [n,col,lane,half]=TYPES[k],h=lane==2?LANE-2:LANE/2-1,z=y+lane*LANE+1+(lane==2?0:half*(LANE/2-1));g.fillStyle=col;
   if(t.cols){const cw=D.length/D.columns;for(let c=Math.max(0,Math.floor(a/cw)),e=Math.min(D.columns,Math.ceil(b/cw));c<e;c++)if(t.cols[c]){const x=Math.max(L,X(c*cw));g.globalAlpha=.3+.7*Math.sqrt(t.cols[c]/255);g.fillRect(x,z,Math.min(L+w,Math.max(X((c+1)*cw),x+.7))-x,h)}g.globalAlpha=1;return}
   let x1=-1,x2=-1;const flush=()=>{if(x2>x1&&x1>=0)g.fillRect(x1,z,Math.max(.8,x2-x1),h)};
   for(let i=below(t.s,a-t.max),e=below(t.s,b);i<e;i++){const s=t.s[i]+t.d[i];if(s<a)continue;const u=Math.max(L,X(t.s[i])),v=Math.min(L+w,Math.max(X(s),u+.7));
    if(u<=x2+.3){if(v>x2)x2=v}else{flush();x1=u;x2=v}}flush()});
  ['BIO','VFS','OPEN'].forEach((n,i)=>{g.fillStyle='#222';g.textAlign='right';g.fillText(n,L-4,y+LANE*i+15);if(i){g.strokeStyle='#ddd';g.beginPath();g.moveTo(L,y+LANE*i);g.lineTo(L+w,y+LANE*i);g.stroke()}});
  TYPES.forEach((t,i)=>key(i,t[0],t[1]));box(3*LANE,grp.title);y+=3*LANE+GAP}
 for(const [s,e,n] of D.phases){if(e<a||s>b)continue;const u=Math.max(L,X(s)),v=Math.min(L+w,X(e));g.fillStyle=PHASES[n];g.fillRect(u,y,Math.max(.8,v-u),26);if(v-u>7*n.length){g.fillStyle='#fff';g.textAlign='center';g.fillText(n,(u+v)/2,y+17)}}
 box(26,'phase');y+=26;
 const raw=(b-a)/10,p10=Math.pow(10,Math.floor(Math.log10(raw))),st=[1,2,5,10].map(f=>f*p10).find(s=>s>=raw*.999);
 g.fillStyle='#222';g.textAlign='center';for(let k=Math.ceil(a/st);k*st<=b;k++){const x=X(k*st);g.fillRect(x,y,1,4);g.fillText(+(k*st).toPrecision(10),x,y+16)}}
let pending=false;function redraw(){if(!pending){pending=true;requestAnimationFrame(()=>{pending=false;draw()})}}
function clampView(){const len=Math.min(D.length,Math.max(1e-5,b-a));if(a<0)a=0;if(a+len>D.length)a=D.length-len;b=a+len}
cv.addEventListener('wheel',e=>{e.preventDefault();const w=cv.clientWidth-L-R,f=Math.min(1,Math.max(0,(e.offsetX-L)/w)),t=a+f*(b-a),len=Math.min(D.length,Math.max(1e-5,(b-a)*Math.pow(1.0015,e.deltaY)));a=t-f*len;b=a+len;clampView();redraw()},{passive:false});
let drag=null;cv.addEventListener('pointerdown',e=>{drag=[e.clientX,a];cv.setPointerCapture(e.pointerId)});
cv.addEventListener('pointermove',e=>{if(!drag)return;const len=b-a;a=drag[1]-(e.clientX-drag[0])/(cv.clientWidth-L-R)*len;b=a+len;clampView();redraw()});
cv.addEventListener('pointerup',()=>{drag=null});cv.addEventListener('dblclick',()=>{a=0;b=D.length;redraw()});
const bar=document.getElementById('buttons');function button(n,s,e){const x=document.createElement('button');x.textContent=n;x.onclick=()=>{a=s;b=e;clampView();redraw()};bar.append(x)}
button('all',0,D.length);const seen={};for(const [s,e,n] of D.phases)if(!seen[n]){seen[n]=1;button('first '+n,s-.02*(e-s),e+.02*(e-s))}button('last 5 s',D.length-5,D.length);
window.addEventListener('resize',redraw);draw();
</script></body></html>
)html";

}  // namespace

Result<std::string> timeline_page(const Timeline& timeline, const std::vector<TimelineGroup>& groups,
                                  const TimeExtent& extent, const std::string& title,
                                  std::int64_t most_events) {
  Problems problems;
  std::int64_t events = 0;
  for (const TimelineGroup& group : groups) {
    const Result<EventCounts> counts = for_each_event(group.file, [](const TraceEvent&) {});
    if (!counts) return counts.problems();
    events += counts->events;
  }
  const bool exact = events <= most_events;
  const auto seconds = [&](std::int64_t time) { return static_cast<double>(time - extent.first) / 1e9; };
  Json phases = Json::array(), list = Json::array();
  for (const PhaseSpan& span : timeline.phases) {
    Json one = Json::array();
    one.push_back(seconds(span.start));
    one.push_back(seconds(span.end));
    one.push_back(kPhaseNames[static_cast<std::size_t>(span.phase)]);
    phases.push_back(std::move(one));
  }
  for (const TimelineGroup& group : groups) {
    Json types = exact ? exact_group(group, extent.first, problems) : coarse_group(group, extent, problems);
    list.push_back(Json::object({{"title", group.title}, {"types", std::move(types)}}));
  }
  if (!problems.empty()) return problems;
  const Json data = Json::object({{"title", title.empty() ? std::string("Timeline") : title},
                                  {"start", iso_text(extent.first, 0)},
                                  {"length", seconds(extent.last)},
                                  {"events", events},
                                  {"exact", exact},
                                  {"columns", static_cast<std::int64_t>(kPageColumns)},
                                  {"phases", std::move(phases)},
                                  {"cpu", table_json(timeline.cpu, extent.first)},
                                  {"gpu", table_json(timeline.gpu, extent.first)},
                                  {"disk", table_json(timeline.disk, extent.first)},
                                  {"groups", std::move(list)}});
  return kPageHead + script_text(data) + kPageTail;
}

}  // namespace millrace
