"use strict";
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
