"""trig.py OP: one big zstd push (12M rows of dim 1, 1.9 KB) of worker A; 0.3 s later another connection does OP; the worst request of a live worker."""
from psc import *
ops=sys.argv[1:]
shutil=__import__('shutil'); shutil.rmtree('d/trig',ignore_errors=True)
p=Psd('--memory-max','6G','--data-dir','d/trig','--durability','none',pre=('nice','-n','-12'))
a=C(p.port,timeout=300); a.join(job='A',inc=1); t=a.table('w',dim=1).n(3); n=12000000
live=C(p.port,timeout=300); live.join(job='L',inc=1); lt=live.table('l').n(3)
body=bytes([1])*n+bytes(4*n); z=zc(body); s=section(t,nk=n,kb=n,vb=4*n); seq=0; lq=0
c0=C(p.port); c0.join(job='old',inc=1); c0.table('old/t'); c0.call(LEAVE)
def run(op):
    global seq,lq
    seq+=1; done=[0]; t0=time.time(); R={}
    b=C(p.port,timeout=100); 
    if op in('close-joined','leave','push','bigpush','rejoin','beat-suspect'): b.join(job='B',inc=int(time.time()*1e6)); 
    if op in('bigpush',): b2t=b.table('w',dim=1).n(3)
    o=C(p.port,role='operator',shard=0xffffffff,timeout=100)
    def att(): r=a.call(PUSH,push_head(seq,seq-1,1,1,[s]),z,1); R['push']=(r.st,round(time.time()-t0,2)); done[0]=1
    def opf():
        time.sleep(.5); x=time.time()
        if op=='join': r=b.join(job='N',inc=int(time.time()*1e6)); 
        elif op=='join-refused': r=b.join(job='N',inc=0,rank=5)
        elif op=='leave': r=b.call(LEAVE)
        elif op=='rejoin': r=b.join(job='B',inc=int(time.time()*1e6)+5)
        elif op=='close-joined': b.close(); r=None
        elif op=='table-new': b.join(job='B',inc=int(time.time()*1e6)); x=time.time(); r=b.table('nt%d'%time.time())
        elif op=='table-find': r=b.table('l')
        elif op=='table-find-w': r=b.table('w',dim=1)
        elif op=='checkpoint': r=o.admin('checkpoint')
        elif op=='set': r=o.admin('set','old lr=%g'%(.1+random.random()))
        elif op=='drop': r=o.admin('drop','old')
        elif op=='row': r=o.admin('row','5 w')
        elif op=='reader-pull-w': q=C(p.port,role='reader'); r=q.pull(t,list(range(1,100)),dim=1)
        elif op=='reader-state-w': q=C(p.port,role='reader'); r=q.call(PULL,pull_head(0,0,[section(t,nk=0,kb=0,state=1)]))
        elif op=='push': r=b.push(lt,[1],[(1,1)],1)
        elif op=='bigpush': r=b.call(PUSH,push_head(1,0,1,1,[s]),z,1)
        else: r=None
        R['op']=(round(time.time()-x,2),r.st if r else None,r.text[:60] if r else '')
    L=[]
    th=[threading.Thread(target=f,daemon=True) for f in (att,opf)]; [x.start() for x in th]
    while not done[0] or th[1].is_alive():
        lq+=1; x=time.time(); r=live.push(lt,[1],[(1,1)],lq,lq-1); L.append((time.time()-x)*1000); x=time.time(); r=live.pull(lt,[1],lq); L.append((time.time()-x)*1000); time.sleep(.003)
    [x.join() for x in th]
    say('trig',op,'big push',R.get('push'),'op s',R.get('op'),'live n',len(L),'p50 %.1f p99 %.1f max %.0f ms'%(pct(L,.5),pct(L,.99),max(L))); b.close();o.close()
for op in ops: run(op)
p.stop()
