#include "experiments/report/rank_timeline.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "experiments/drawing/html_page.h"
#include "experiments/report/run_messages.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/drawing/gantt.h"
#include "runtime/trace/trace_windows.h"

namespace millrace {
namespace {

constexpr double kCutGap = 0.1;             // of the time that is shown: longer gaps are cut out
constexpr std::int64_t kTick = 100;         // nanoseconds: the unit of the page's numbers
constexpr std::size_t kStillColumns = 240;  // of the still picture
constexpr int kWide = 1096, kMostLoaderLanes = 4;

/// A kind of span as the page draws it.
struct Look {
  SpanKind kind;
  const char* name;
  const char* of_gantt;  ///< in the still picture; nullptr: not there
  const char* colour;    ///< nullptr: that of the still picture
};
const std::array<Look, 17> kLooks{{{SpanKind::Forward, "forward", "forward", nullptr},
                                   {SpanKind::Backward, "backward", "backward", nullptr},
                                   {SpanKind::BackwardInput, "backward input", "input", nullptr},
                                   {SpanKind::BackwardWeight, "backward weight", "weight", nullptr},
                                   {SpanKind::Send, "send", "send", nullptr},
                                   {SpanKind::Recv, "receive", "receive", nullptr},
                                   {SpanKind::Wait, "wait", nullptr, "#b9c2cc"},
                                   {SpanKind::Reduce, "reduce", "reduce", nullptr},
                                   {SpanKind::Update, "update", "update", nullptr},
                                   {SpanKind::Data, "batch wait", "data", nullptr},
                                   {SpanKind::Checkpoint, "checkpoint", "other", "#d43f9c"},
                                   {SpanKind::Eval, "evaluation", "other", "#8a4fd0"},
                                   {SpanKind::Step, "step", nullptr, "#66727f"},
                                   {SpanKind::Load, "load", nullptr, "#2f80c8"},
                                   {SpanKind::Preprocess, "preprocess", nullptr, "#35a549"},
                                   {SpanKind::Copy, "copy", "data", "#c98a1b"},
                                   {SpanKind::Loss, "loss", nullptr, "#1b2a41"}}};
constexpr std::size_t kMessage = kLooks.size();  // the kind of messages in the page's list

bool is_of_loader(SpanKind kind) {
  return kind == SpanKind::Load || kind == SpanKind::Preprocess;
}

/// A span or message of the page.
struct Event {
  std::int64_t start = 0, end = 0;
  std::size_t kind = 0;
  std::int64_t microbatch = -1, step = -1;
  int other = -1;  ///< the rank at the other end
};

struct Lane {
  std::string label;
  const char* form = "work";
  std::vector<Event> events;
};

/// A stretch of time that is shown without a gap.
struct Stretch {
  std::int64_t start = 0, end = 0;
  std::int64_t shown = 0;  ///< time that is shown before it
};

class RankTimeline {
 public:
  RankTimeline(const RunData& run, const TimelineLimits& limits) : run_(run), limits_(limits) {}

  std::string html() {
    choose_steps();
    choose_ranks();
    if (!collect()) return "";
    find_stretches();
    return html_card("Timeline", lead(),
                     "<div id=\"timeline\"></div><div id=\"timeline-still\" class=\"gantt scroll\">" +
                         still() + "</div><script type=\"application/json\" id=\"timeline-data\">" + data() +
                         "</script>");
  }

 private:
  /// All traced steps, or some early, some in the middle and some late.
  void choose_steps() {
    std::set<std::int64_t> steps;
    std::size_t spans = 0;
    for (const RankRun& rank : run_.ranks) {
      spans += rank.spans.size();
      for (const Span& span : rank.spans) steps.insert(span.step);
    }
    traced_ = steps.size();
    const std::vector<std::int64_t> all(steps.begin(), steps.end());
    if (spans <= limits_.spans) {
      steps_ = std::move(steps);
      return;
    }
    const auto count = static_cast<std::int64_t>(std::max<double>(
        1,
        static_cast<double>(all.size()) * static_cast<double>(limits_.spans) / static_cast<double>(spans)));
    for (const TraceWindow& one : trace_windows(0, count, static_cast<std::int64_t>(all.size())))
      for (std::int64_t i = one.first; i < one.end; ++i) steps_.insert(all[static_cast<std::size_t>(i)]);
  }

  void choose_ranks() {
    std::vector<std::size_t> traced;
    for (std::size_t r = 0; r < run_.ranks.size(); ++r)
      if (!run_.ranks[r].spans.empty()) traced.push_back(r);
    traced_ranks_ = traced.size();
    const std::size_t every = (traced.size() + limits_.ranks - 1) / std::max<std::size_t>(1, limits_.ranks);
    for (std::size_t i = 0; i < traced.size(); i += std::max<std::size_t>(1, every))
      ranks_.push_back(traced[i]);
  }

  /// Returns false if nothing is left to be drawn.
  bool collect() {
    const std::vector<std::int64_t> offsets = clock_offsets(run_);
    std::map<int, std::vector<Event>> messages;
    for (const RunMessage& one : messages_of(run_))
      if (steps_.contains(one.step))
        messages[one.to].push_back({one.sent, one.arrived, kMessage, one.microbatch, one.step, one.from});
    const std::size_t of_rank =
        std::max<std::size_t>(1, limits_.spans / std::max<std::size_t>(1, ranks_.size()));
    for (const std::size_t r : ranks_) {
      const RankRun& rank = run_.ranks[r];
      const std::string name = "rank " + std::to_string(rank.rank);
      Lane work{name + (rank.stage >= 0 ? " · s" + std::to_string(rank.stage) : ""), "work", {}};
      std::map<int, Lane> loaders;
      for (const Span& span : rank.spans) {
        if (span.end < span.start || !steps_.contains(span.step) || span.kind == SpanKind::Step) continue;
        const bool loads = is_of_loader(span.kind);
        const Event event{span.start + offsets[r],
                          span.end + offsets[r],
                          static_cast<std::size_t>(span.kind),
                          span.microbatch,
                          span.step,
                          loads ? -1 : span.peer};
        if (!loads) {
          work.events.push_back(event);
          continue;
        }
        const int place = std::clamp(span.peer, 0, kMostLoaderLanes - 1);
        loaders.try_emplace(place, Lane{"loader " + std::to_string(place), "thin", {}})
            .first->second.events.push_back(event);
      }
      lanes_.push_back(std::move(work));
      if (const auto found = messages.find(rank.rank); found != messages.end())
        lanes_.push_back({"messages in", "thin", std::move(found->second)});
      for (auto& [place, lane] : loaders) lanes_.push_back(std::move(lane));
    }
    bool any = false;
    for (Lane& lane : lanes_) {
      // An enclosing span comes first, and is drawn below.
      std::ranges::stable_sort(lane.events, {}, [](const Event& e) { return std::pair(e.start, -e.end); });
      if (lane.events.size() > of_rank) {
        cut_ += lane.events.size() - of_rank;
        lane.events.resize(of_rank);
      }
      any |= !lane.events.empty();
    }
    return any;
  }

  void find_stretches() {
    std::vector<std::pair<std::int64_t, std::int64_t>> spans;
    for (const Lane& lane : lanes_)
      for (const Event& event : lane.events) spans.emplace_back(event.start, event.end);
    std::ranges::sort(spans);
    std::vector<Stretch> covered;
    std::int64_t sum = 0;
    for (const auto& [start, end] : spans) {
      if (covered.empty() || start > covered.back().end) covered.push_back({start, start, 0});
      sum += std::max<std::int64_t>(0, end - covered.back().end);
      covered.back().end = std::max(covered.back().end, end);
    }
    const auto most = static_cast<std::int64_t>(kCutGap * static_cast<double>(sum));
    for (const Stretch& one : covered) {
      if (!stretches_.empty() && one.start - stretches_.back().end <= most)
        stretches_.back().end = one.end;
      else
        stretches_.push_back(one);
    }
    for (Stretch& one : stretches_) {
      one.shown = length_;
      length_ += std::max<std::int64_t>(kTick, one.end - one.start);
    }
  }

  std::int64_t shown(std::int64_t time) const {
    const auto after = std::ranges::upper_bound(stretches_, time, {}, &Stretch::start);
    const Stretch& one = after == stretches_.begin() ? stretches_.front() : *std::prev(after);
    return one.shown + std::clamp<std::int64_t>(time - one.start, 0, one.end - one.start);
  }

  std::string lead() const {
    std::string text =
        "Every traced span of each rank, on one time line. Below a rank: messages on their way to it, and "
        "the "
        "threads of its loader. Wheel, or + and -: zoom. Drag, or arrow keys: move. Double click, or 0: all.";
    if (steps_.size() < traced_)
      text += " Left out: " + std::to_string(traced_ - steps_.size()) + " of " + std::to_string(traced_) +
              " traced steps; those shown are from early, the middle and late.";
    if (ranks_.size() < traced_ranks_)
      text += " Left out: " + std::to_string(traced_ranks_ - ranks_.size()) + " of " +
              std::to_string(traced_ranks_) + " ranks.";
    if (cut_ > 0) text += " Left out: the last " + std::to_string(cut_) + " spans of full rows.";
    if (stretches_.size() > 1)
      text += " Dashed: " + std::to_string(stretches_.size() - 1) +
              (stretches_.size() == 2 ? " gap" : " gaps") + " without a trace, cut out.";
    return text;
  }

  /// For readers without the script: the whole length in columns, each in the colour of what took most of it.
  std::string still() const {
    std::vector<GanttRow> rows;
    const double column = static_cast<double>(length_) / static_cast<double>(kStillColumns);
    for (const Lane& lane : lanes_) {
      if (std::string_view(lane.form) != "work") continue;
      std::vector<std::map<std::size_t, double>> shares(kStillColumns);
      for (const Event& event : lane.events) {
        if (!kLooks[event.kind].of_gantt) continue;
        const double from = static_cast<double>(shown(event.start)) / column,
                     to = static_cast<double>(shown(event.end)) / column;
        for (auto c = static_cast<std::size_t>(from); c < kStillColumns && static_cast<double>(c) < to; ++c)
          shares[c][event.kind] += std::min(to, static_cast<double>(c + 1)) - std::max(from, double(c));
      }
      GanttRow row{.label = lane.label, .bars = {}, .note = {}, .to = static_cast<double>(length_) * 1e-9};
      for (std::size_t c = 0; c < kStillColumns; ++c) {
        std::size_t most = kLooks.size();
        double share = 0, sum = 0;
        for (const auto& [kind, part] : shares[c]) {
          sum += part;
          if (part > share) most = kind, share = part;
        }
        if (sum < 0.5 || most == kLooks.size()) continue;  // mostly idle
        const std::string kind = kLooks[most].of_gantt;
        const double start = static_cast<double>(c) * column * 1e-9,
                     end = static_cast<double>(c + 1) * column * 1e-9;
        if (!row.bars.empty() && row.bars.back().kind == kind &&
            row.bars.back().end >= start - column * 1e-10)
          row.bars.back().end = end;
        else
          row.bars.push_back({start, end, kind, "", 0});
      }
      rows.push_back(std::move(row));
    }
    return gantt_svg(rows, {.title = "All that was traced", .width = kWide});
  }

  std::string data() const {
    Json kinds = Json::array(), lanes = Json::array(), stretches = Json::array(), steps = Json::array();
    for (const Look& look : kLooks)
      kinds.push_back(Json::object(
          {{"name", look.name}, {"colour", look.colour ? look.colour : colour_of(look.of_gantt)}}));
    kinds.push_back(Json::object({{"name", "message"}, {"colour", colour_of("send")}}));
    std::map<std::int64_t, std::int64_t> starts;
    for (const Lane& lane : lanes_) {
      Json events = Json::array();
      std::int64_t last = 0;
      for (const Event& event : lane.events) {
        const std::int64_t start = shown(event.start) / kTick, end = shown(event.end) / kTick;
        for (const std::int64_t value : {start - last, end - start, static_cast<std::int64_t>(event.kind),
                                         event.microbatch, event.step, std::int64_t{event.other}})
          events.push_back(value);
        last = start;
        if (event.step < 0 || std::string_view(lane.form) != "work") continue;
        const auto found = starts.try_emplace(event.step, start).first;
        found->second = std::min(found->second, start);
      }
      lanes.push_back(Json::object({{"label", lane.label}, {"form", lane.form}, {"e", std::move(events)}}));
    }
    const auto row = [](std::initializer_list<std::int64_t> values) {
      Json list = Json::array();
      for (const std::int64_t value : values) list.push_back(value);
      return list;
    };
    for (const Stretch& one : stretches_)
      stretches.push_back(row({one.shown / kTick, (one.start - stretches_.front().start) / kTick}));
    for (const auto& [step, start] : starts) steps.push_back(row({start, step}));
    return Json::object({{"format", "millrace-timeline-1"},
                         {"length", length_ / kTick},
                         {"kinds", std::move(kinds)},
                         {"stretches", std::move(stretches)},
                         {"steps", std::move(steps)},
                         {"lanes", std::move(lanes)}})
        .dump(-1);
  }

  const RunData& run_;
  const TimelineLimits limits_;
  std::set<std::int64_t> steps_;
  std::size_t traced_ = 0, traced_ranks_ = 0, cut_ = 0;
  std::vector<std::size_t> ranks_;  ///< in RunData::ranks
  std::vector<Lane> lanes_;
  std::vector<Stretch> stretches_;
  std::int64_t length_ = 0;  ///< nanoseconds that are shown
};

}  // namespace

std::string rank_timeline_html(const RunData& run, const TimelineLimits& limits) {
  return RankTimeline(run, limits).html();
}

const char* rank_timeline_script() {
  return R"js("use strict";
(()=>{const held=document.getElementById('timeline-data');if(!held)return;
const D=JSON.parse(held.textContent),box=document.getElementById('timeline'),still=document.getElementById('timeline-still');
const cv=document.createElement('canvas'),g=cv.getContext('2d');if(!g)return;
const bar=document.createElement('p'),legend=document.createElement('div'),tip=document.createElement('div');
legend.className='legend';cv.tabIndex=0;cv.setAttribute('role','img');
cv.setAttribute('aria-label','Timeline of ranks by phase. Keys: plus, minus, arrows, 0.');
cv.style.cssText='display:block;width:100%;cursor:grab;touch-action:pan-y';
tip.style.cssText='position:fixed;display:none;pointer-events:none;white-space:pre;font-size:12px;padding:4px 7px;border-radius:5px;z-index:2;background:var(--card);color:var(--text);border:1px solid var(--edge)';
box.append(bar,legend,cv,tip);still.style.display='none';
const SEC=1e7,seen=new Set();
for(const lane of D.lanes){const n=lane.e.length/6;lane.n=n;lane.s=new Float64Array(n);lane.d=new Float64Array(n);lane.max=0;let t=0;
 for(let i=0;i<n;i++){t+=lane.e[6*i];lane.s[i]=t;lane.d[i]=lane.e[6*i+1];if(lane.d[i]>lane.max)lane.max=lane.d[i];seen.add(lane.e[6*i+2])}}
for(const k of [...seen].sort((x,y)=>x-y)){const e=document.createElement('span'),i=document.createElement('i');i.style.background=D.kinds[k].colour;e.append(i,D.kinds[k].name);legend.append(e)}
let a=0,b=D.length,L=104,rows=[];const R=8;
const heights={work:24,thin:9};
function below(s,x){let l=0,h=s.length;while(l<h){const m=(l+h)>>1;if(s[m]<x)l=m+1;else h=m}return l}
function css(n){return getComputedStyle(document.documentElement).getPropertyValue(n).trim()}
function round(raw){const p=Math.pow(10,Math.floor(Math.log10(raw)));return [1,2,5,10].map(f=>f*p).find(v=>v>=raw*.999)}
function real(t){let k=0;while(k+1<D.stretches.length&&D.stretches[k+1][0]<=t)k++;return t-D.stretches[k][0]+D.stretches[k][1]}
function text(t,step){const s=t/SEC;return step>=SEC?s.toFixed(0)+' s':step>=SEC/1e3?(s*1e3).toFixed(0)+' ms':(s*1e6).toFixed(1)+' µs'}
function dur(t){const s=t/SEC;return s>=1?s.toFixed(3)+' s':s>=1e-3?(s*1e3).toFixed(3)+' ms':(s*1e6).toFixed(1)+' µs'}
function draw(){
 const W=cv.clientWidth||1000,q=window.devicePixelRatio||1;L=W<640?70:104;let H=6;
 rows=D.lanes.map((lane,i)=>{const h=heights[lane.form];if(lane.form=='work'&&i)H+=8;const r=[H,H+h,lane];H+=h+2;return r});H+=40;
 cv.width=Math.round(W*q);cv.height=Math.round(H*q);cv.style.height=H+'px';g.setTransform(q,0,0,q,0,0);
 g.fillStyle=css('--card');g.fillRect(0,0,W,H);g.font='11px system-ui,Helvetica,Arial,"DejaVu Sans",sans-serif';
 const w=W-L-R,X=t=>L+(t-a)/(b-a)*w,ink=css('--text'),soft=css('--tick'),idle=css('--idle'),edge=css('--grid');
 for(const [y,z,lane] of rows){
  g.textAlign='right';g.fillStyle=lane.form=='work'?ink:soft;
  if(lane.form=='work'||z-y>=9)g.fillText(lane.label,L-6,lane.form=='work'?y+16:y+8.5);
  g.fillStyle=idle;g.globalAlpha=lane.form=='work'?1:.45;g.fillRect(L,y,w,z-y);g.globalAlpha=lane.form=='work'?1:.75;
  g.save();g.beginPath();g.rect(L,y,w,z-y);g.clip();
  for(let i=below(lane.s,a-lane.max),e=below(lane.s,b);i<e;i++){
   const s=lane.s[i],d=lane.d[i];if(s+d<a)continue;const k=lane.e[6*i+2],u=X(s),v=Math.max(X(s+d),u+.3),name=D.kinds[k].name;
   const top=name=='loss'?z-6:name=='evaluation'||name=='checkpoint'?z-3:y;
   g.fillStyle=D.kinds[k].colour;g.fillRect(u,name=='wait'?y+9:top,v-u,name=='wait'?6:z-top);
   const mb=String(lane.e[6*i+3]);
   if(v-u>7*mb.length+6&&lane.form=='work'&&lane.e[6*i+3]>=0&&name!='wait'&&name!='loss'){g.fillStyle='#16202b';g.textAlign='center';g.fillText(mb,(Math.max(u,L)+Math.min(v,L+w))/2,y+16)}
  }
  g.restore();g.globalAlpha=1}
 const base=H-34;g.textAlign='center';
 for(const [t,step] of D.steps){if(t<a||t>b)continue;const x=X(t);g.fillStyle=edge;g.fillRect(x,2,1,base)}
 const unit=round((b-a)/(W<640?4:9));
 for(let k=0;k<D.stretches.length;k++){const [at,start]=D.stretches[k],end=k+1<D.stretches.length?D.stretches[k+1][0]:D.length;
  if(end<a||at>b)continue;
  if(k&&at>=a){g.strokeStyle=ink;g.setLineDash([4,3]);g.beginPath();g.moveTo(X(at),0);g.lineTo(X(at),base+4);g.stroke();g.setLineDash([])}
  const from=Math.max(a,at)-at+start,to=Math.min(b,end)-at+start;
  for(let n=Math.ceil(from/unit-1e-9);n*unit<=to+1e-6;n++){const x=X(n*unit-start+at);g.fillStyle=soft;g.fillRect(x,base,1,4);g.fillText(text(n*unit,unit),x,base+15)}}
 g.fillStyle=soft;g.fillText('since the first span',L+w/2,base+30)}
function said(x,y){const w=cv.clientWidth-L-R;if(x<L||x>L+w)return '';const t=a+(x-L)/w*(b-a),near=(b-a)/w,row=rows.find(r=>y>=r[0]&&y<r[1]);if(!row)return '';
 const lane=row[2];let hit=-1;for(let i=below(lane.s,t-lane.max-near),e=below(lane.s,t+near);i<e;i++)if(lane.s[i]+lane.d[i]>=t-near&&lane.s[i]<=t+near)hit=i;
 const at='at '+dur(real(t));if(hit<0)return lane.label+'\nidle '+at;
 const o=6*hit,e=lane.e;return lane.label+'\n'+D.kinds[e[o+2]].name+(e[o+3]>=0?' of microbatch '+e[o+3]:'')+(e[o+4]>=0?', step '+(e[o+4]+1):'')+(e[o+5]>=0?', rank '+e[o+5]:'')+'\n'+dur(lane.d[hit])+' from '+dur(real(lane.s[hit]))}
let pending=false,drag=null;
function redraw(){if(!pending){pending=true;requestAnimationFrame(()=>{pending=false;draw()})}}
function view(from,len){len=Math.min(D.length,Math.max(20,len));a=Math.min(Math.max(0,from),D.length-len);b=a+len;redraw()}
function zoom(f,at){const t=a+at*(b-a);view(t-at*(b-a)*f,(b-a)*f)}
function step(way){const m=a+(b-a)*.001,next=way>0?D.steps.find(s=>s[0]>m):[...D.steps].reverse().find(s=>s[0]<a-(b-a)*.001);if(!next)return;
 const after=D.steps.find(s=>s[0]>next[0]),len=(after?after[0]:D.length)-next[0];view(next[0]-.02*len,1.04*len)}
const acts={'all':()=>view(0,D.length),'+':()=>zoom(.5,.5),'−':()=>zoom(2,.5),'◀':()=>view(a-.25*(b-a),b-a),'▶':()=>view(a+.25*(b-a),b-a),'step before':()=>step(-1),'next step':()=>step(1)};
for(const n in acts){const x=document.createElement('button');x.type='button';x.textContent=n;x.style.cssText='font:inherit;margin:0 4px 4px 0';x.onclick=acts[n];bar.append(x)}
const keys={'+':'+','=':'+','-':'−','ArrowLeft':'◀','ArrowRight':'▶','0':'all','Home':'all','n':'next step','p':'step before'};
cv.addEventListener('keydown',e=>{if(e.ctrlKey||e.metaKey||e.altKey||!keys[e.key])return;e.preventDefault();acts[keys[e.key]]()});
cv.addEventListener('wheel',e=>{e.preventDefault();tip.style.display='none';zoom(Math.pow(1.0015,e.deltaY),Math.min(1,Math.max(0,(e.offsetX-L)/(cv.clientWidth-L-R))))},{passive:false});
cv.addEventListener('pointerdown',e=>{drag=[e.clientX,a];cv.setPointerCapture(e.pointerId)});
cv.addEventListener('pointerup',()=>{drag=null});cv.addEventListener('pointercancel',()=>{drag=null});
cv.addEventListener('pointermove',e=>{if(drag){tip.style.display='none';view(drag[1]-(e.clientX-drag[0])/(cv.clientWidth-L-R)*(b-a),b-a);return}
 const words=said(e.offsetX,e.offsetY);tip.style.display=words?'block':'none';if(!words)return;tip.textContent=words;
 const r=tip.getBoundingClientRect();tip.style.left=Math.max(4,Math.min(innerWidth-r.width-4,e.clientX+14))+'px';tip.style.top=(e.clientY+16+r.height>innerHeight?e.clientY-r.height-10:e.clientY+16)+'px'});
cv.addEventListener('pointerleave',()=>{tip.style.display='none'});
cv.addEventListener('dblclick',acts.all);window.addEventListener('resize',redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change',redraw);
window.addEventListener('beforeprint',()=>{still.style.display=''});window.addEventListener('afterprint',()=>{still.style.display='none'});
draw()})();
)js";
}

}  // namespace millrace
