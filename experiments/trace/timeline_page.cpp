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
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>Timeline</title>
<style>
:root{color-scheme:light dark;--page:#fff;--text:#222;--soft:#5c6672;--edge:#bbb;--grid:#e6e6e6;--lane:#f6f7f9;--idle:#8a8a8a;--tip:#fffffff2}
@media screen and (prefers-color-scheme:dark){:root{--page:#14181d;--text:#e6eaef;--soft:#a4afbb;--edge:#55606c;--grid:#2b333d;--lane:#1b2129;--idle:#a5a5a5;--tip:#1f262ef2}}
body{font:13px system-ui,Helvetica,Arial,"DejaVu Sans",sans-serif;margin:12px;color:var(--text);background:var(--page)}
h1{font-size:17px;margin:0 0 4px}#hint{color:var(--soft);margin:0 0 8px}canvas{display:block;width:100%;cursor:grab}
button{font:inherit;margin:0 4px 8px 0}
#legend{display:flex;flex-wrap:wrap;gap:2px 16px;margin:0 0 8px}#legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px;vertical-align:-1px}
#legend b{font-weight:600;color:var(--soft)}
#tip{position:fixed;display:none;pointer-events:none;background:var(--tip);border:1px solid var(--edge);border-radius:5px;padding:4px 7px;white-space:pre;font-size:12px;z-index:2}
@media print{#buttons,#tip{display:none}}
</style></head><body>
<h1 id="title"></h1><p id="hint"></p><div id="legend"></div><div id="buttons"></div><canvas id="c" role="img"></canvas><div id="tip"></div>
<script type="application/json" id="data">)html";

constexpr const char* kPageTail = R"html(</script>
<script>
"use strict";
const D=JSON.parse(document.getElementById('data').textContent),cv=document.getElementById('c'),g=cv.getContext('2d'),tip=document.getElementById('tip');
const TYPES=[['block read','#2f80c8',0,0],['block write','#dc3b3b',0,1],['open','#8f55b5',2,0],['read','#35a549',1,0],['write','#e58513',1,1]];
const LANES=['BIO','VFS','OPEN'];
const PHASES={INIT:'#4c78d8',TRAINING:'#dcb000',EVAL:'#8a4fd0',CHECKPOINT:'#d43f9c'};
const LANE=24,SH=84,GAP=16,PH=26;
let L=74,R=96,WIDE=true;
document.getElementById('title').textContent=D.title;document.title=D.title;
document.getElementById('hint').textContent='Wheel: zoom. Drag: move. Double click: all. Point at anything: its figures. '+D.events.toLocaleString('en')+' events'+(D.exact?'.':' in '+D.columns.toLocaleString('en')+' columns: no finer detail than that is in this page.');
function bytes(s){const b=atob(s),a=new Uint8Array(b.length);for(let i=0;i<b.length;i++)a[i]=b.charCodeAt(i);return a}
for(const grp of D.groups)for(const t of grp.types){
 if(t.c!==undefined){t.cols=bytes(t.c);continue}
 const b=bytes(t.e);let p=0,s=0;t.s=new Float64Array(t.n);t.d=new Float64Array(t.n);t.max=0;
 const v=()=>{let r=0,m=1,x;do{x=b[p++];r+=(x&127)*m;m*=128}while(x>127);return r};
 for(let i=0;i<t.n;i++){s+=v();t.s[i]=s/1e6;t.d[i]=v()/1e6;if(t.d[i]>t.max)t.max=t.d[i]}}
const legend=document.getElementById('legend');
function entry(name,colour){const e=document.createElement(colour?'span':'b');if(colour){const i=document.createElement('i');i.style.background=colour;e.append(i)}e.append(name);legend.append(e)}
entry('Calls; height: share of the time that they cover');for(const t of TYPES)entry(t[0],t[1]);
const seen={};for(const [s,e,n] of D.phases)if(!seen[n])seen[n]=[s,e];
if(D.phases.length)entry('Phases');for(const n in PHASES)if(seen[n])entry(n,PHASES[n]);
let a=0,b=D.length,areas=[];
function below(s,x){let l=0,h=s.length;while(l<h){const m=(l+h)>>1;if(s[m]<x)l=m+1;else h=m}return l}
function panels(){const p=[];if(D.cpu)p.push(['CPU %',D.cpu,100,[['user','user','#35a549'],['system','system','#dc3b3b'],['I/O wait','I/O wait','#2f80c8'],['stolen','stolen','#8f55b5'],['idle','idle','--idle']],'%',1]);
 if(D.gpu)p.push(['GPU %',D.gpu,100,[['sm','SM','#35a549'],['mem','memory','#e58513']],'%',1]);
 if(D.gpu&&D.gpu.columns.fb)p.push(['GPU GB',D.gpu,0,[['fb','used','#8f55b5']],'GB',1000]);
 if(D.disk)p.push(['disk MB/s',D.disk,0,[['read MB/s','read','#2f80c8'],['written MB/s','written','#dc3b3b']],'MB/s',1]);return p}
const P=panels();
function ticks(from,to,n){const raw=(to-from)/n,p=Math.pow(10,Math.floor(Math.log10(raw))),st=[1,2,5,10].map(f=>f*p).find(s=>s>=raw*.999),r=[];for(let k=Math.ceil(from/st-1e-9);k*st<=to+st*1e-9;k++)r.push(+(k*st).toPrecision(10));return r}
for(const p of P)if(!p[2]){let m=1e-9;for(const c of p[3])for(const v of p[1].columns[c[0]]||[])if(v/p[5]>m)m=v/p[5];const t=ticks(0,m*1.15,4);p[2]=Math.max(t[t.length-1],m)}
function css(name){return getComputedStyle(document.documentElement).getPropertyValue(name).trim()}
function ink(c){return c.startsWith('--')?css(c):c}
/* Shares of n pixels: what lies in [u, v) of them, each weighed. Middles are kept as differences. */
function Shares(n){this.n=n;this.edge=new Float64Array(n+1);this.step=new Float64Array(n+2)}
Shares.prototype.add=function(u,v,weight){u=Math.max(0,u);v=Math.min(this.n,v);if(!(v>u))return;const i=Math.floor(u),j=Math.floor(v);if(i==j){this.edge[i]+=(v-u)*weight;return}this.edge[i]+=(i+1-u)*weight;this.edge[j]+=(v-j)*weight;this.step[i+1]+=weight;this.step[j]-=weight};
Shares.prototype.take=function(){const r=new Float64Array(this.n);let all=0;for(let i=0;i<this.n;i++){all+=this.step[i];r[i]=Math.min(1,all+this.edge[i])}return r};
function sharesOf(t,n){const s=new Shares(n),k=n/(b-a);
 if(t.cols){const cw=D.length/D.columns;for(let c=Math.max(0,Math.floor(a/cw)),e=Math.min(D.columns,Math.ceil(b/cw));c<e;c++)if(t.cols[c])s.add((c*cw-a)*k,((c+1)*cw-a)*k,t.cols[c]/255);return s.take()}
 for(let i=below(t.s,a-t.max),e=below(t.s,b);i<e;i++)s.add((t.s[i]-a)*k,Math.max((t.s[i]+t.d[i]-a)*k,(t.s[i]-a)*k+1e-9),1);return s.take()}
function draw(){
 const W=cv.clientWidth,H=P.length*(SH+GAP)+D.groups.length*(3*LANE+GAP)+PH+44+22,q=window.devicePixelRatio||1;
 WIDE=W>=640;L=WIDE?74:58;R=WIDE?96:12;
 cv.width=Math.round(W*q);cv.height=Math.round(H*q);cv.style.height=H+'px';g.setTransform(q,0,0,q,0,0);g.fillStyle=css('--page');g.fillRect(0,0,W,H);g.font='11px Helvetica,Arial,"DejaVu Sans",sans-serif';
 const text=css('--text'),soft=css('--soft'),edge=css('--edge'),grid=css('--grid'),lane=css('--lane');
 const w=W-L-R,X=t=>L+(t-a)/(b-a)*w,n=Math.max(1,Math.round(w*q)),px=w/n;let y=6;areas=[];
 function box(h,label){g.strokeStyle=edge;g.strokeRect(L,y,w,h);g.save();g.translate(14,y+h/2);g.rotate(-Math.PI/2);g.fillStyle=text;g.textAlign='center';g.fillText(label,0,0);g.restore()}
 function key(i,name,colour){if(!WIDE)return;g.fillStyle=colour;g.fillRect(L+w+8,y+4+12*i,10,4);g.fillStyle=text;g.textAlign='left';g.fillText(name,L+w+22,y+10+12*i)}
 for(const p of P){const [label,tab,top,curves,unit,per]=p;
  for(const v of ticks(0,top,4)){const z=y+SH-v/top*SH;g.strokeStyle=grid;g.beginPath();g.moveTo(L,z);g.lineTo(L+w,z);g.stroke();g.textAlign='right';g.fillStyle=soft;g.fillText(v,L-4,z+4)}
  g.save();g.beginPath();g.rect(L,y,w,SH);g.clip();
  curves.forEach(([c,nm,col])=>{const v=tab.columns[c];if(!v)return;g.strokeStyle=ink(col);g.fillStyle=ink(col);g.beginPath();let on=false;
   const from=Math.max(0,below(tab.t,a)-1),to=Math.min(tab.t.length,below(tab.t,b)+1);
   for(let i=from;i<to;i++){if(v[i]===null){on=false;continue}const x=X(tab.t[i]),z=y+SH-Math.min(1,v[i]/per/top)*SH;on?g.lineTo(x,z):g.moveTo(x,z);on=true}g.stroke();
   if(tab.t.length==1&&v[0]!==null)g.fillRect(X(tab.t[0])-1.5,y+SH-Math.min(1,v[0]/per/top)*SH-1.5,3,3)});
  g.restore();curves.forEach(([c,nm,col],i)=>{if(tab.columns[c])key(i,nm,ink(col))});box(SH,label);areas.push([y,y+SH,'curves',p]);y+=SH+GAP}
 for(const grp of D.groups){
  g.fillStyle=lane;g.fillRect(L,y,w,3*LANE);
  grp.types.forEach((t,k)=>{const [nm,col,ln,half]=TYPES[k],h=ln==2?LANE-3:LANE/2-2,z=y+ln*LANE+1.5+(ln==2?0:half*(LANE/2-1)),s=sharesOf(t,n);g.fillStyle=col;
   /* A column's height is its share, at least a hair: little is seen as little. */
   for(let i=0;i<n;){const v=s[i];let e=i+1;while(e<n&&s[e]==v)e++;if(v>0){const hh=Math.max(1.5,v*h);g.fillRect(L+i*px,z+h-hh,Math.max(1.2,(e-i)*px),hh)}i=e}
   areas.push([z,z+h,'calls',t,k,s])});
  LANES.forEach((nm,i)=>{g.fillStyle=soft;g.textAlign='right';g.fillText(nm,L-4,y+LANE*i+16);if(i){g.strokeStyle=grid;g.beginPath();g.moveTo(L,y+LANE*i);g.lineTo(L+w,y+LANE*i);g.stroke()}});
  TYPES.forEach((t,i)=>key(i,t[0],t[1]));box(3*LANE,grp.title);y+=3*LANE+GAP}
 /* Phases thinner than a pixel share it by height. */
 const names=Object.keys(PHASES),parts=names.map(()=>new Shares(n));
 for(const [s,e,nm] of D.phases)if(e>=a&&s<=b)parts[names.indexOf(nm)].add((s-a)/(b-a)*n,(e-a)/(b-a)*n,1);
 const of=parts.map(p=>p.take());
 for(let i=0;i<n;){let e=i+1;while(e<n&&of.every(p=>p[e]==p[i]))e++;let z=y+PH;of.forEach((p,k)=>{const h=p[i]*PH;if(h>0){z-=h;g.fillStyle=PHASES[names[k]];g.fillRect(L+i*px,z,(e-i)*px,h)}});i=e}
 for(const [s,e,nm] of D.phases){if(e<a||s>b)continue;const u=Math.max(L,X(s)),v=Math.min(L+w,X(e));if(v-u>7.5*nm.length){g.fillStyle=nm=='TRAINING'?'#222':'#fff';g.textAlign='center';g.fillText(nm,(u+v)/2,y+17)}}
 box(PH,'phase');areas.push([y,y+PH,'phases']);y+=PH;
 g.textAlign='center';for(const v of ticks(a,b,WIDE?10:4)){const x=X(v);g.fillStyle=edge;g.fillRect(x,y,1,4);g.fillStyle=text;g.fillText(v,x,y+16)}
 g.fillStyle=soft;g.fillText(WIDE?'seconds since '+D.start+' UTC':'seconds',L+w/2,y+34)}
const num=v=>+v.toPrecision(4),dur=s=>s>=1?num(s)+' s':s>=1e-3?num(s*1e3)+' ms':num(s*1e6)+' µs',percent=v=>(v>0&&v<.001?'below 0.1':num(v*100>=10?Math.round(v*1000)/10:v*100))+' %';
function said(x,y){const w=cv.clientWidth-L-R;if(x<L||x>L+w)return '';const t=a+(x-L)/w*(b-a),area=areas.find(r=>y>=r[0]-1&&y<=r[1]+1);if(!area)return '';
 const at=+t.toPrecision(9)+' s';
 if(area[2]=='phases'){const i=D.phases.filter(p=>p[0]<=t&&p[1]>=t);return i.length?i.map(p=>p[2]+': '+dur(p[1]-p[0])+', '+num(p[0])+' to '+num(p[1])+' s').join('\n'):'no phase at '+at}
 if(area[2]=='curves'){const [label,tab,top,curves,unit,per]=area[3];if(!tab.t.length)return '';let i=below(tab.t,t);if(i>=tab.t.length||i&&t-tab.t[i-1]<tab.t[i]-t)i=Math.max(0,i-1);
  return 'sample of '+num(tab.t[i])+' s\n'+curves.filter(c=>tab.columns[c[0]]).map(c=>c[1]+': '+(tab.columns[c[0]][i]===null?'none':num(tab.columns[c[0]][i]/per)+' '+unit)).join('\n')}
 const ty=area[3],k=area[4],s=area[5],i=Math.min(s.length-1,Math.max(0,Math.floor((x-L)/w*s.length))),t0=a+i/s.length*(b-a),t1=a+(i+1)/s.length*(b-a);
 let r=TYPES[k][0]+' at '+at+'\nbusy '+percent(s[i])+' of this pixel\'s '+dur(t1-t0);
 if(!ty.cols){let c=0,one=0;for(let j=below(ty.s,t0-ty.max),e=below(ty.s,t1);j<e;j++)if(ty.s[j]+ty.d[j]>=t0){c++;one=j}
  r+='\n'+c.toLocaleString('en')+(c==1?' call: '+dur(ty.d[one])+' from '+ty.s[one].toFixed(6)+' s':' calls')}
 return r}
let pending=false;function redraw(){if(!pending){pending=true;requestAnimationFrame(()=>{pending=false;draw()})}}
function clampView(){const len=Math.min(D.length,Math.max(1e-5,b-a));if(a<0)a=0;if(a+len>D.length)a=D.length-len;b=a+len}
function hover(e){const words=drag?'':said(e.offsetX,e.offsetY);tip.style.display=words?'block':'none';if(!words)return;tip.textContent=words;
 const r=tip.getBoundingClientRect();tip.style.left=Math.max(4,Math.min(innerWidth-r.width-4,e.clientX+14))+'px';tip.style.top=(e.clientY+16+r.height>innerHeight?e.clientY-r.height-10:e.clientY+16)+'px'}
cv.addEventListener('wheel',e=>{e.preventDefault();tip.style.display='none';const w=cv.clientWidth-L-R,f=Math.min(1,Math.max(0,(e.offsetX-L)/w)),t=a+f*(b-a),len=Math.min(D.length,Math.max(1e-5,(b-a)*Math.pow(1.0015,e.deltaY)));a=t-f*len;b=a+len;clampView();redraw()},{passive:false});
let drag=null;cv.addEventListener('pointerdown',e=>{drag=[e.clientX,a];cv.setPointerCapture(e.pointerId)});
cv.addEventListener('pointermove',e=>{hover(e);if(!drag)return;const len=b-a;a=drag[1]-(e.clientX-drag[0])/(cv.clientWidth-L-R)*len;b=a+len;clampView();redraw()});
cv.addEventListener('pointerleave',()=>{tip.style.display='none'});
cv.addEventListener('pointerup',()=>{drag=null});cv.addEventListener('dblclick',()=>{a=0;b=D.length;redraw()});
const bar=document.getElementById('buttons');function button(n,s,e){const x=document.createElement('button');x.textContent=n;x.onclick=()=>{a=s;b=e;clampView();redraw()};bar.append(x)}
button('all',0,D.length);for(const n in seen){const [s,e]=seen[n];button('first '+n,s-.02*(e-s),e+.02*(e-s))}button('last 5 s',D.length-5,D.length);
window.addEventListener('resize',redraw);matchMedia('(prefers-color-scheme: dark)').addEventListener('change',redraw);draw();
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
