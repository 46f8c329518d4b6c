"""Style and script of the pages: light and dark, wide and narrow, without anything from
elsewhere.
"""

from html import escape

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--card:#f5f6f8;--text:#1a1d21;--soft:#555b63;--line:#c9ced6;--link:#0b57d0;
--good:#136c2e;--fair:#7a5200;--bad:#b3261e;
--c0:#1f6fc4;--c1:#b5540b;--c2:#1b5e36;--c3:#7b4fb0;--c4:#2b98a8;--c5:#c0392b;--c6:#8a6d00}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1f242a;--text:#e8eaed;--soft:#aab1ba;--line:#454c55;
--link:#8ab4f8;--good:#6fcf8b;--fair:#e5b454;--bad:#ff8a80;
--c0:#6fb1f5;--c1:#f0964f;--c2:#7fd8a4;--c3:#c19df0;--c4:#2c8a97;--c5:#ff8a80;--c6:#d9bb4f}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:78rem;background:var(--bg);
color:var(--text);overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:1.6rem 0 .5rem}h3{font-size:1rem;margin:1rem 0 .3rem}
a{color:var(--link)}
.small{font-size:.82rem;color:var(--soft);font-weight:400}
p.small{margin:.2rem 0}
.tiles{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,17rem),1fr));margin:.8rem 0}
.tile{background:var(--card);border-left:.35rem solid var(--soft);border-radius:.4rem;padding:.6rem .9rem}
.tile h2{font-size:.85rem;margin:0;color:var(--soft)}
.tile p{margin:.15rem 0}.answer{font-weight:600}
.tile.good{border-color:var(--good)}.tile.fair{border-color:var(--fair)}.tile.bad{border-color:var(--bad)}
.good .answer{color:var(--good)}.fair .answer{color:var(--fair)}.bad .answer{color:var(--bad)}
#stale{color:var(--bad);font-weight:600}
.charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr))}
.chart{margin:0;min-width:0}.wide{grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;gap:.2rem .7rem;align-items:baseline;margin-bottom:.3rem}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .7rem;font-size:.82rem}
.key{display:inline-flex;align-items:center;gap:.3rem}.key svg{width:1.3rem;height:.65rem;overflow:visible}
.plot{position:relative;height:10rem;margin:0 .4rem 1.5rem 3.4rem}.wide .plot{height:15rem}
.plot>svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible;border-left:1px solid var(--line);
border-bottom:1px solid var(--line)}
.ys span{position:absolute;right:calc(100% + .35rem);transform:translateY(-50%);font-size:.75rem;color:var(--soft);
white-space:nowrap}
.xs span{position:absolute;top:calc(100% + .15rem);transform:translateX(-50%);font-size:.75rem;color:var(--soft);
white-space:nowrap}
path{fill:none;stroke-width:1.6;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.grid{stroke:var(--line);stroke-width:.6}.mark{stroke:var(--soft);stroke-dasharray:4 3}
.dots{stroke-linecap:round;stroke-width:6}
.hit{fill:var(--text);opacity:0}.hit:hover{opacity:.1}
.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}.l4{stroke:var(--c4)}
.l5{stroke:var(--c5)}.l6{stroke:var(--c6)}
.a0{fill:var(--c0)}.a1{fill:var(--c1)}.a2{fill:var(--c2)}.a3{fill:var(--c3)}.a4{fill:var(--c4)}.a5{fill:var(--c5)}
.a6{fill:var(--c6)}
path[class^=a],path[class^=band]{stroke:none}.band{opacity:.22}.odd{opacity:.72}
.bar{display:block;width:100%;height:1.2rem;border-radius:.3rem}
.lanes{position:relative;margin:0 .6rem 2.8rem}.lane{margin-bottom:.35rem}
.lane svg{display:block;width:100%;height:1.5rem;background:var(--card)}
.facts{display:grid;gap:.1rem 1.4rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));margin:.5rem 0}
.facts div{display:grid;grid-template-columns:clamp(5rem,22vw,8rem) 1fr;gap:.5rem;font-size:.88rem}
dt{color:var(--soft)}dd{margin:0}.facts .all{grid-column:1/-1}.flag{white-space:nowrap}
.scroll{overflow-x:auto;overflow-wrap:normal}
table{border-collapse:collapse;font-size:.88rem}
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
.runs td{white-space:nowrap}.runs td:nth-child(6),.runs td:nth-child(10){white-space:normal;min-width:9rem}
.n{text-align:right;font-variant-numeric:tabular-nums}.share{width:clamp(3rem,15vw,10rem);height:.7rem}
details{margin:.5rem 0}summary{cursor:pointer;font-weight:600}
.sample{margin:1rem 0;padding:.8rem;background:var(--card);border-radius:.4rem}
.thumbs{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,17rem),1fr))}.thumbs>*{margin:0}
.sounds{display:grid;gap:.5rem 1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,15rem),1fr))}
.sounds span{display:block;font-size:.82rem;color:var(--soft)}audio{width:100%;height:2.2rem}
img{max-width:100%;height:auto;margin-top:.6rem;border-radius:.3rem}
pre{overflow-x:auto;background:var(--card);padding:.8rem;border-radius:.4rem;font-size:.82rem;overflow-wrap:normal}
#tip{position:fixed;left:.5rem;right:.5rem;bottom:.5rem;padding:.5rem .8rem;background:var(--text);color:var(--bg);
border-radius:.4rem;font-size:.85rem}
"""

# Reload keeps the scroll position and what is unfolded, and waits while a sound plays, text is
# selected or the page is hidden. A page from a file may not read files, but it may reload itself.
# Touch has no tooltips: a tap shows the title.
SCRIPT = """
(function(){
var d=document,h=d.documentElement,key='myxtts:'+location.pathname,written=+h.dataset.written*1000,
reload=+h.dataset.reload*1000,stale=+h.dataset.stale*1000,opened=Date.now();
function all(s){return Array.prototype.slice.call(d.querySelectorAll(s))}
function save(){try{sessionStorage.setItem(key,JSON.stringify({y:scrollY,open:all('details[id]').map(function(e){
return[e.id,e.open]})}))}catch(e){}}
function restore(){try{var s=JSON.parse(sessionStorage.getItem(key));if(!s)return;s.open.forEach(function(p){
var e=d.getElementById(p[0]);if(e&&e.tagName==='DETAILS')e.open=p[1]});scrollTo(0,s.y)}catch(e){}}
function span(s){return s<90?Math.round(s)+' s':s<5400?Math.round(s/60)+' min':s<172800?(s/3600).toFixed(1)+' h':
Math.round(s/86400)+' days'}
function age(){var a=Date.now()-written,e=d.getElementById('age'),w=d.getElementById('stale');
if(e)e.textContent='written '+span(Math.max(a,0)/1000)+' ago';
if(w)w.textContent=stale&&a>stale?'No news for longer than expected: the run has been killed, or it hangs. ':''}
function busy(){return d.hidden||all('audio').some(function(a){return!a.paused})||String(getSelection()).length>0}
restore();addEventListener('load',restore);age();setInterval(age,1000);
addEventListener('pagehide',save);
setInterval(function(){if(reload&&Date.now()-opened>reload&&!busy()){save();location.reload()}},1000);
addEventListener('pointerdown',function(e){var t=d.getElementById('tip'),
n=e.pointerType==='touch'&&e.target.querySelector&&e.target.querySelector(':scope>title');if(t)t.remove();if(n){t=d.createElement('div');t.id='tip';
t.textContent=n.textContent;d.body.appendChild(t)}});
})();
"""


def document(title: str, body: str, written_s: float, reload_s: float, stale_s: float = 0.0) -> str:
    """Return a whole page.

    Args:
        body: HTML.
        written_s: time of the page, in seconds since 1970.
        reload_s: age at which an open page reloads itself.
        stale_s: age from which the page says that there is no news; 0 for never.
    """
    return (
        f'<!doctype html><html lang="en" data-written="{written_s:.0f}"'
        f' data-reload="{reload_s:.0f}" '
        f'data-stale="{stale_s:.0f}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f'<noscript><meta http-equiv="refresh" content="{max(reload_s, 30):.0f}"></noscript>'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{body}<script>{SCRIPT}</script></body></html>\n"
    )
