"""part.py: psworker jobs on a cluster of 2 nodes; half partition by blackhole routes in a netns, SIGSTOP of node / worker, kill -9 of a node (fsync)."""
from psc import *
import shutil
def sh(*a,ok=False): r=subprocess.run(a,capture_output=True,text=True); assert ok or r.returncode==0,(a,r.stderr); return r.stdout
NSN='atk%d'%os.getpid()
sh('ip','netns','add',NSN); sh('ip','link','add','va'+NSN[-5:],'type','veth','peer','name','vb'+NSN[-5:]); sh('ip','link','set','vb'+NSN[-5:],'netns',NSN)
sh('ip','addr','add','10.99.77.1/24','dev','va'+NSN[-5:]); sh('ip','addr','add','10.99.77.2/24','dev','va'+NSN[-5:]); sh('ip','link','set','va'+NSN[-5:],'up')
ns=['ip','netns','exec',NSN]; sh(*ns,'ip','addr','add','10.99.77.9/24','dev','vb'+NSN[-5:]); sh(*ns,'ip','link','set','vb'+NSN[-5:],'up'); sh(*ns,'ip','link','set','lo','up')
import atexit
@atexit.register
def clean():
    for p in procs:
        if p.poll() is None: p.kill()
    subprocess.run(['ip','netns','del',NSN]); subprocess.run(['ip','link','del','va'+NSN[-5:]],capture_output=True)
procs=[]
D='BUILD'; shutil.rmtree(D,ignore_errors=True); os.makedirs(D)
sh(BIN+'/psworker','synth','--rows','60000','--output',D+'/c.tsv.zst','--numeric-columns','4','--categorical-columns','6','--cardinality','500')
def cluster(tag,dura='fsync'):
    a,b=freeport(),freeport(); cl='10.99.77.1:%d,10.99.77.2:%d'%(a,b); out=[]
    for i,(ip,po) in enumerate((('10.99.77.1',a),('10.99.77.2',b))):
        cmd=[BIN+'/psd','--listen','%s:%d'%(ip,po),'--http','off','--insecure','--cluster',cl,'--node',str(i),'--shards','1','--data-dir','%s/%s-n%d'%(D,tag,i),'--lease','3s','--durability',dura]
        f=open('%s/%s-n%d.log'%(D,tag,i),'ab'); p=subprocess.Popen(cmd,stdout=f,stderr=f); p.cmd=cmd; p.f=f; procs.append(p); out.append(p)
    time.sleep(.7); return out,'10.99.77.1:%d'%a,'10.99.77.2:%d'%b
def worker(tag,srv,rank,n,mode,nsx=False,extra=()):
    cmd=(ns if nsx else [])+[BIN+'/psworker','train','--servers',srv,'--job','pj','--format','','--header'][:0]
    cmd=(ns if nsx else [])+[BIN+'/psworker','train','--servers',srv,'--job','pj','--data',D+'/c.tsv.zst','--label','0','--numeric','1-4','--categorical','5-10','--bottom','16','--top','16','--workers',str(n),'--rank',str(rank),'--mode',mode,'--epochs','40','--batch','64','--valid-fraction','0.1','--optimizer','sgd','--dim','8'][:]+list(extra)
    f=open('%s/%s-w%d.log'%(D,tag,rank),'wb'); p=subprocess.Popen(cmd,stdout=f,stderr=f); procs.append(p); p.log=f.name; return p
def deaths(srvs):
    o=[]
    for s in srvs:
        r=sh(BIN+'/psctl','workers','--server',s,ok=True); o.append(' | '.join(' '.join(l.split()[:4]) for l in r.splitlines() if 'live' in l or 'dead' in l or 'suspected' in l or 'left' in l or 'job' in l))
    return o
def tail(p): return open(p.log).read()[-350:]
def run(tag,mode,event,dura='fsync',T=70):
    nodes,s0,s1=cluster(tag,dura); ws=[worker(tag,s0,r,3,mode,nsx=(r==2)) for r in range(3)]
    t0=time.time(); time.sleep(2.5)
    if any(w.poll() is not None for w in ws): say('part',tag,'worker ended early',[w.poll() for w in ws],tail(ws[0])); 
    say('part',tag,mode,'before',deaths((s0,s1)))
    event(nodes,ws,(s0,s1)); 
    say('   mid',deaths((s0,s1)))
    end=t0+T
    while time.time()<end and any(w.poll() is None for w in ws): time.sleep(.2)
    rc=[w.poll() for w in ws]
    say('part',tag,mode,'exit codes',rc,'after %.1f s'%(time.time()-t0),'states',deaths((s0,s1)),'nodes alive',[n.poll() for n in nodes])
    if None in rc: say('   HUNG why',sh(BIN+'/psctl','why','--server',s0,ok=True)[:600])
    for w in ws:
        if w.poll() is None: w.kill()
        lines=[l for l in open(w.log).read().splitlines() if 'warn' in l or 'error' in l]; say('   w',ws.index(w),lines[:3],lines[-1:] if len(lines)>3 else '',len(lines))
    for i in (0,1): say('   n%d'%i,[l[25:200] for l in open('%s/%s-n%d.log'%(D,tag,i)).read().splitlines() if 'warn' in l or 'error' in l or 'dead' in l or 'suspect' in l][-4:])
    for n in nodes: n.terminate()
    for n in nodes: n.wait(20)
    v=subprocess.run([BIN+'/psctl','verify','%s/%s-n0,%s/%s-n1'%(D,tag,D,tag)],capture_output=True,text=True); say('   verify',v.returncode)
def hole(which,secs):
    def ev(nodes,ws,s):
        ip=s[which].split(':')[0]; sh(*ns,'ip','route','add','blackhole',ip+'/32'); time.sleep(secs); say('   during',deaths(s)); sh(*ns,'ip','route','del','blackhole',ip+'/32'); time.sleep(1.5)
    return ev
def stopnode(which,secs):
    def ev(nodes,ws,s): nodes[which].send_signal(signal.SIGSTOP); time.sleep(secs); nodes[which].send_signal(signal.SIGCONT); time.sleep(1)
    return ev
def stopworker(r,secs):
    def ev(nodes,ws,s): ws[r].send_signal(signal.SIGSTOP); time.sleep(secs); ws[r].send_signal(signal.SIGCONT); time.sleep(1)
    return ev
def killnode(which,down):
    def ev(nodes,ws,s):
        n=nodes[which]; n.kill(); n.wait(); time.sleep(down); p=subprocess.Popen(n.cmd,stdout=n.f,stderr=n.f); p.cmd=n.cmd; p.f=n.f; procs.append(p); nodes[which]=p; time.sleep(1)
    return ev
EV={'hole1':('bsp',hole(1,7)),'hole0s':('ssp',hole(0,7)),'short':('bsp',hole(1,1.5)),'stopnode':('bsp',stopnode(1,8)),'stopworker':('ssp',stopworker(2,7)),'killnode':('bsp',killnode(1,1))}
for k in (sys.argv[1].split(',') if len(sys.argv)>1 else EV): 
    try: run(k,EV[k][0],EV[k][1],T=60)
    except Exception as e: import traceback; traceback.print_exc(); say('part',k,'EXC',repr(e))
