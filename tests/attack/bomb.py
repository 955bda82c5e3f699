"""bomb.py: zstd bombs from peers that have not joined, while a good worker measures."""
from psc import *
import multiprocessing as mp
def setup(p):
    c=C(p.port); c.join(job='setup',inc=1); 
    for d in (1,8): print(c.table('d%d'%d,dim=d).st)
    c.call(LEAVE); c.close()
MB=1<<20
def bomb(kind,tid1):
    if kind=='unjoined-push':   # 63 MiB zeros, lengths consistent
        n=12*MB; body=bytes([1])*n+bytes(4*n); return 'worker',frame(PUSH,push_head(1,0,1,1,[section(tid1,nk=n,kb=n,vb=4*n)]),zc(body,3),1,1)
    if kind=='unjoined-pull':
        n=15*MB; return 'worker',frame(PULL,pull_head(0,0,[section(tid1,nk=n,kb=n)]),zc(bytes([1])*n,3),1,1)
    if kind=='reader-zeros':    # second key breaks the order
        n=15*MB; return 'reader',frame(PULL,pull_head(0,0,[section(tid1,nk=n,kb=n)]),zc(bytes(n),3),1,1)
    if kind=='reader-notable':
        n=15*MB; return 'reader',frame(PULL,pull_head(0,0,[section(999,nk=n,kb=n)]),zc(bytes([1])*n,3),1,1)
    if kind=='reader-64M':
        n=63*MB; return 'reader',frame(PULL,pull_head(0,0,[section(999,nk=n,kb=n)]),zc(bytes([1])*n,3),1,1)
    if kind=='reader-63M-10byte':  # 10 bytes a key so the answer fits
        n=6*MB; return 'reader',frame(PULL,pull_head(0,0,[section(tid1,nk=n,kb=10*n)]),zc(b'\x80'*9*n+b'\x01'*n,3),1,1)
    if kind=='reader-3M':
        n=3*MB; return 'reader',frame(PULL,pull_head(0,0,[section(tid1,nk=n,kb=n)]),zc(bytes([1])*n,3),1,1)
    if kind=='reader-200k':
        n=200000; return 'reader',frame(PULL,pull_head(0,0,[section(tid1,nk=n,kb=n)]),zc(bytes([1])*n,3),1,1)
    if kind=='reader-100-small':  # many small bombs in one send
        n=60000; return 'reader',frame(PULL,pull_head(0,0,[section(tid1,nk=n,kb=n)]),zc(bytes(n),3),1,1)*50
    if kind=='garbage-zstd':
        z=bytearray(zc(bytes(60*MB),3)); z[len(z)//2:]=os.urandom(len(z)-len(z)//2); n=60*MB
        return 'reader',frame(PULL,pull_head(0,0,[section(tid1,nk=n,kb=n)]),bytes(z),1,1)
KINDS=['unjoined-push','unjoined-pull','reader-zeros','reader-notable','reader-64M','reader-63M-10byte','reader-3M','reader-200k','reader-100-small','garbage-zstd']
def attacker(port,kind,tid1,stop,n,q,nconn,src=None):
    os.nice(5); role,f=bomb(kind,tid1); cs=[]
    if nconn==0: return
    def mk():
        c=C(port,role=role,src=src); 
        if role=='reader': c.table('d1',must=1)
        c.s.setblocking(False); c.o=b''; return c
    st=0
    cs=[]
    for _ in range(nconn):
        try: cs.append(mk())
        except Exception as e: q.put(repr(e)); 
    while not stop.is_set():
        rr,ww,_=select.select([c.s for c in cs],[c.s for c in cs],[],.1)
        for i,c in enumerate(cs):
            try:
                if c.s in rr:
                    d=c.s.recv(1<<20)
                    if not d: raise ConnectionResetError
                if c.s in ww:
                    if not c.o: c.o=f; n.value+=1
                    k=c.s.send(c.o[:1<<20]); c.o=c.o[k:]
            except BlockingIOError: pass
            except OSError:
                try: cs[i]=mk(); st+=1
                except Exception as e: time.sleep(.01)
    q.put('reconnects %d'%st)
def good(port,secs,job='good'):
    o=subprocess.run(['/usr/bin/python3','good.py',str(port),str(secs),job],capture_output=True,text=True)
    return o.stdout.strip() or o.stderr[-300:]
if __name__=='__main__':
    secs=float(sys.argv[1]); kinds=sys.argv[2].split(',') if len(sys.argv)>2 else KINDS; nconn=int(sys.argv[3]) if len(sys.argv)>3 else 8
    p=Psd(); setup(p); say('bomb: alone',good(p.port,secs),'rss %.0f'%p.rss())
    for k in kinds:
        stop=mp.Event(); n=mp.Value('l',0); q=mp.Queue()
        a=mp.Process(target=attacker,args=(p.port,k,0,stop,n,q,nconn)); a.start(); time.sleep(1)
        cpu0=sum(map(int,open('/proc/%d/stat'%p.p.pid).read().split()[13:15]))
        g=good(p.port,secs,'g'+k); cpu=sum(map(int,open('/proc/%d/stat'%p.p.pid).read().split()[13:15]))-cpu0
        rss=p.rss(); stop.set(); time.sleep(.3); a.terminate(); a.join()
        ex=[]
        while not q.empty(): ex.append(q.get())
        say('bomb:',k,'conns',nconn,'bytes/frame',len(bomb(k,0)[1]),'sent',n.value,g,'rss %.0f'%rss,'psd cpu %.2f'%(cpu/100/secs),ex[:2],'alive',p.alive())
    say('bomb: alone after',good(p.port,secs),'rss %.0f'%p.rss(),'stop',p.stop())
