"""stall.py NCONN [lease] [rounds]: NCONN readers that have joined nothing each send ONE 1,975-byte frame (6 Mi keys as zstd) at the same time; a live worker beats and pushes meanwhile."""
from psc import *
from bomb import bomb
n=int(sys.argv[1]); lease=sys.argv[2] if len(sys.argv)>2 else '10s'; rounds=int(sys.argv[3]) if len(sys.argv)>3 else 1
p=Psd('--lease',lease,*sys.argv[4:]); c=C(p.port); c.join(job='s',inc=1); c.table('d1',dim=1); c.call(LEAVE); c.close()
w=[]
for r in (0,1):
    c=C(p.port,timeout=120); assert c.join(job='live',rank=r,n=2,inc=1,mode=1,name='w%d'%r).st==0; c.tid=c.table('d1',dim=1).n(3); w.append(c)
stop=False; L=[]; bad=[]
def beat(c,r):
    k=0
    while not stop:
        k+=1; t=time.time()
        try: x=c.push(c.tid,[5],[(1,)],k,k-1)
        except Exception as e: bad.append((r,repr(e))); return
        L.append(time.time()-t)
        if x.st: bad.append((r,x.st,x.text)); return
        time.sleep(.05)
th=[threading.Thread(target=beat,args=(c,r)) for r,c in enumerate(w)]; [t.start() for t in th]
time.sleep(2); say('stall alone n',len(L),'p99 %.1f ms'%(1000*pct(L,.99)),'max %.1f ms'%(1000*max(L))); L.clear()
role,f=bomb('reader-63M-10byte',0); cs=[C(p.port,role='reader',timeout=60) for _ in range(n)]
for c in cs: c.s.setblocking(False)
t0=time.time(); mx=0; got=0; nb=0
for _ in range(rounds):
    for c in cs:
        try: c.s.send(f)
        except OSError: pass
end=time.time()+45; last=time.time()
while time.time()<end and (time.time()-last<6 or nb==0):
    r,_,_=select.select([c.s for c in cs],[],[],.2); mx=max(mx,p.rss() or 0)
    for s in r:
        try:
            d=s.recv(1<<20); nb+=len(d); last=time.time()
            if not d: cs=[c for c in cs if c.s is not s]
        except OSError: cs=[c for c in cs if c.s is not s]
stop=True; [t.join() for t in th]
say('stall conns',n,'x',rounds,'frames of',len(f),'bytes; lease',lease,'worker requests',len(L),'p50 %.1f ms p99 %.1f ms max %.2f s'%(1000*pct(L,.5),1000*pct(L,.99),max(L)),'refused/dead',bad,'reply MB',nb>>20,'max rss %.0f MB'%mx,'secs %.0f'%(time.time()-t0))
say('   psd log',[l[:160] for l in open(p.log).read().splitlines() if 'dead' in l or 'greed' in l or 'closed' in l or 'memory' in l][:4]); say('   stop',p.stop())
