"""zjoined.py N MB [args]: N connections of joined workers each send ONE zstd push (MB MiB plain) at once, to a table number that does not exist (refused) or own seq 5 (PS_ESEQ); worst of a live worker. 2 runs on existing state."""
from psc import *
N=int(sys.argv[1]); mb=float(sys.argv[2]); kind=sys.argv[3]; p=Psd(*sys.argv[4:],pre=('nice','-n','-12')); n=int(mb*(1<<20)/5)
live=C(p.port,timeout=300); live.join(job='L',inc=1); lt=live.table('l').n(3); lq=0; z=zc(bytes([1])*n+bytes(4*n)); A=[]
for i in range(N): a=C(p.port,timeout=300); r=a.join(job='A',rank=i,n=N,inc=1,mode=1,name='w%d'%i); assert r.st==0,r; A.append(a)
if kind=='valid':
    for a in A: assert a.table('w',dim=1).st==0
    wt=A[0].table('w',dim=1).n(3)
s=section(wt if kind=='valid' else 999 if kind=='notable' else 0,nk=n,kb=n,vb=4*n); L=[]
if kind=='valid': q=C(p.port,timeout=100); q.join(job='pre',inc=1); q.table('w',dim=1); r=q.call(PUSH,push_head(1,0,1,1,[s]),z,1); time.sleep(2.5); say('rows made',r.st,'rss %.0f'%p.rss())
def mes(secs):
    global lq
    e=time.time()+secs
    while time.time()<e:
        lq+=1; x=time.time(); live.push(lt,[1],[(1,1)],lq,lq-1); L.append((time.time()-x)*1000); x=time.time(); live.pull(lt,[1],lq); L.append((time.time()-x)*1000); time.sleep(.002)
mes(2); b=max(L)
for rnd in range(2):
    L.clear(); th=threading.Thread(target=mes,args=(N*.9+4,)); th.start(); time.sleep(.3); x=time.time(); mx=0
    for a in A: a.send(PUSH,push_head(5 if kind=='eseq' else rnd+1,0,1,1,[s]),z,1)
    e=time.time()+60; st={}; left=set(A)
    while left and time.time()<e:
        hb=[p.stats()['totals']['net']['held_bytes']>>20] if 0 else []; mx=max(mx,p.rss()); r,_,_=select.select(list(left),[],[],.02)
        for a in r:
            try: q=a.recv(); st[q.st]=st.get(q.st,0)+1
            except Closed: st['closed']=st.get('closed',0)+1
            left.discard(a)
    el=time.time()-x; th.join(); say('zjoined greedy',p.stats()['totals']['net']['greedy_peers'],N,'x',mb,'MiB',kind,'frame',len(z),'bytes; alone max %.0f'%b,'round',rnd,'statuses',st,'in %.2f s'%el,'live max %.0f ms'%max(L),'over 200 ms: %d'%sum(1 for v in L if v>200),'rss %.0f'%mx)
p.stop(60)
