"""host.py KIND N [psd args]: good worker alone; under the attack of N connections; control: the same attack on a second psd. nice -n 5 attackers."""
from psc import *
kind=sys.argv[1]; N=int(sys.argv[2]); extra=sys.argv[3:]
MB=1<<20
def good(port,job,secs=5):
    o=subprocess.run((['nice','-n',os.environ['PNICE']] if 'PNICE' in os.environ else [])+['python3','good2.py',str(port),str(secs),job],capture_output=True,text=True,timeout=200)
    try: return json.loads(o.stdout)
    except ValueError: return o.stdout[-200:]+o.stderr[-300:]
def prep(port):
    c=C(port,timeout=60); assert c.join(job='prep',inc=1).st==0
    for nm,kw in [('d1',dict(dim=1)),('d8',dict(dim=8)),('w0',dict(dim=16384)),('wn',dict(dim=16384,extra=fv(6,2)+ff(7,.1))),('wa',dict(dim=16384,optim=4,eps=1e-8)),('n1',dict(dim=1,extra=fv(6,2)+ff(7,.1)))]:
        t=c.table(nm,**kw); assert t.st==0,(nm,t)
    if kind in('manysec','heads'): 
        for i in range(250): assert c.table('m%d'%i,dim=1).st==0
    if kind.startswith('state') or kind in('bigpull','midend','midendr'): # rows exist
        n=2*MB; t=c.table('d1',dim=1).n(3)
        for k in range(1): r=c.call(PUSH,push_head(1,0,1,1,[section(t,codec=2,nk=n,kb=n,vb=2*n)]),bytes([1])*n+bytes(2*n)); assert r.st==0,r
    if kind.startswith('wexist'):
        t=c.table('w0',dim=16384).n(3)
        r=c.call(PUSH,push_head(1,0,1,1,[section(t,codec=5,k=1,nk=2000,kb=2000,vb=12000)]),bytes([1])*2000+struct.pack('<H',3)*2000+struct.pack('<f',1)*2000)
        print('wexist',r)
    c.call(LEAVE); c.close()
def attacker(port,stop_at,tag):
    os.nice(5); out=dict(sent=0,got=0,rec=0,err={})
    cs=[]
    def mk(i):
        role='reader' if kind.startswith('r-') or kind=='midendr' else 'worker'
        c=C(port,role=role,timeout=60,flags=2 if kind.startswith('midend') else 0); c.i=i; c.seq=0; c.inflight=0; c.o=b''; c.rd=0
        if role=='worker': 
            j=c.join(job='h%s%d'%(tag,i),rank=0,n=2 if kind in('held','parked') else 1,inc=int(time.time()*1e6),mode=3 if kind in('held','parked') else 1); assert j.st==0,j
            c.T={k:c.table(k,must=1).n(3) for k in ('d1','d8','w0','wn','wa','n1')}
        else: c.T={k:c.table(k,must=1).n(3) for k in ('d1','d8','w0','wn','wa','n1')}
        if kind=='manysec' or kind=='heads': c.M=[c.table('m%d'%k,must=1).n(3) for k in range(250)]
        c.s.setblocking(False); return c
    def nxt(c):
        T=c.T
        c.rid+=1
        k=kind
        if k=='bigpush': n=10*MB; c.seq+=1; return frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['d1'],nk=n,kb=n,vb=4*n)]),CACHE('bp',lambda:bytes([1])*n+bytes(4*n)),c.rid)
        if k=='bigpush1m': n=MB//5; c.seq+=1; return frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['d1'],nk=n,kb=n,vb=4*n)]),CACHE('bp',lambda:bytes([1])*n+bytes(4*n)),c.rid)
        if k in('bigpull','midend'): n=12*MB; return frame(PULL,pull_head(0,0,[section(T['d1'],nk=n,kb=n)]),CACHE('pl',lambda:bytes([1])*n),c.rid)
        if k=='midendr': n=12*MB; return frame(PULL,pull_head(0,0,[section(T['d1'],nk=n,kb=n)]),CACHE('plz',lambda:zc(bytes([1])*n)),c.rid,1)
        if k=='statepull': n=2*MB; return frame(PULL,pull_head(0,0,[section(T['d1'],nk=n,kb=n,state=1)]),CACHE('pl',lambda:bytes([1])*n),c.rid)
        if k=='topkpush': n=9000; c.seq+=1; return frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['w0'],codec=5,k=1,nk=n,kb=n,vb=6*n)]),CACHE('tk',lambda:bytes([1])*n+struct.pack('<Hf',3,1.)*0+(struct.pack('<H',3)*1+struct.pack('<f',1.))*n),c.rid)
        if k=='wexistpush': n=2000; c.seq+=1; return frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['w0'],codec=5,k=1,nk=n,kb=n,vb=6*n)]),CACHE('tk',lambda:bytes([1])*n+(struct.pack('<H',3)+struct.pack('<f',1.))*n),c.rid)
        if k=='topkbig': n=9*MB; c.seq+=1; return frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['w0'],codec=5,k=1,nk=n,kb=n,vb=6*n)]),CACHE('tk',lambda:bytes([1])*n+(struct.pack('<H',3)+struct.pack('<f',1.))*n),c.rid)
        if k in('r-topkpull','topkpull'): n=9*MB; return frame(PULL,pull_head(0,0,[section(T['w0'],codec=5,k=1,nk=n,kb=n)]),CACHE('tp',lambda:zc(bytes([1])*n)),c.rid,1)
        if k in('r-normtopk','normtopk'): n=9*MB; return frame(PULL,pull_head(0,0,[section(T['wn'],codec=5,k=1,nk=n,kb=n)]),CACHE('tp',lambda:zc(bytes([1])*n)),c.rid,1)
        if k=='r-normtopk-small': n=250; return frame(PULL,pull_head(0,0,[section(T['wn'],codec=5,k=1,nk=n,kb=n)]),CACHE('tp',lambda:bytes([1])*n),c.rid)
        if k=='r-onebit': n=28000; return frame(PULL,pull_head(0,0,[section(T['wn'],codec=4,nk=n,kb=n)]),CACHE('ob',lambda:bytes([1])*n),c.rid)
        if k=='r-norm1': n=12*MB; return frame(PULL,pull_head(0,0,[section(T['n1'],nk=n,kb=n)]),CACHE('plz',lambda:zc(bytes([1])*n)),c.rid,1)
        if k=='manysec': return frame(PULL,pull_head(0,0,[section(x) for x in c.M]),b'',c.rid)*20
        if k=='heads': 
            ss=[section(x)+b'\x08\x00'*0 for x in c.M[:200]]; h=pull_head(0,0,ss); h+=b''.join(fbz(50,b'') for _ in range(2500)); return frame(PULL,h,b'',c.rid)*20
        if k=='bigunknown': return frame(PULL,pull_head(0,0,[])+fbz(50,bytes(65000)),b'',c.rid)*20
        if k=='nested': 
            h=fbz(3,b'\x08\x01'*30000); return frame(PULL,h,b'',c.rid)*20
        if k=='beats': return frame(BEAT,fv(1,1)+b''.join(fbz(2,fv(1,q)+fv(2,c.rid+q)+fv(4,1)) for q in range(16)),b'',c.rid)*100
        if k=='tinypush': 
            o=[]
            for _ in range(200): c.seq+=1; o.append(frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['d8'],nk=1,kb=1,vb=32)]),b'\x05'+bytes(32),c.rid))
            return b''.join(o)
        if k=='zbomb': n=12*MB; c.seq+=1; return frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['d1'],nk=n,kb=n,vb=4*n)]),CACHE('zb',lambda:zc(bytes([1])*n+bytes(4*n))),c.rid,1)
        if k=='held': 
            c.seq+=1; n=200000; return frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['d1'],nk=n,kb=n,vb=4*n)]),CACHE('hd',lambda:bytes([1])*n+bytes(4*n)),c.rid)
        if k=='parked': n=MB; return frame(PULL,pull_head(1,1,[section(T['d1'],nk=n,kb=n)]),CACHE('pk',lambda:bytes([1])*n),c.rid)
        if k=='rejoin': return b''.join(frame(JOIN,join_head(job='h%s%d'%(tag,c.i),n=1,inc=int(time.time()*1e6)+q,mode=1),b'',c.rid) for q in range(100))
        if k=='tables': return frame(TABLE,fb(1,spec('d8',dim=8)),b'',c.rid)*100
        if k=='newtables': c.seq+=1; return b''.join(frame(TABLE,fb(1,spec('x%s%d.%d.%d'%(tag,c.i,c.seq,q),dim=1)),b'',c.rid) for q in range(20))
        if k=='adam': n=900; c.seq+=1; return frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(T['wa'],codec=4,nk=n,kb=n,vb=n*2304)]),CACHE('ad',lambda:bytes([1])*n+(struct.pack('<f',.01)*64+bytes(2048))*n),c.rid)
        raise SystemExit('kind?')
    cache={}
    def CACHE(n,f):
        if n not in cache: cache[n]=f()
        return cache[n]
    for i in range(N):
        try: cs.append(mk(i))
        except Exception as e: out['err'][repr(e)[:80]]=out['err'].get(repr(e)[:80],0)+1
    while time.time()<stop_at:
        if not cs: break
        rr,ww,_=select.select([c for c in cs],[c for c in cs if c.o or c.inflight<2],[],.1)
        for c in list(cs):
            try:
                if c in rr:
                    d=c.s.recv(MB)
                    if not d: raise ConnectionResetError
                    out['got']+=len(d); c.rd+=len(d); 
                    if len(d)<200 and out.get('sample') is None: out['sample']=d[24:180]
                    if kind.startswith('midend') and c.rd>R.choice([1000,100000,3*MB,20*MB]): out['ended']=out.get('ended',0)+1; raise ConnectionResetError
                    c.inflight=0
                if c in ww:
                    if not c.o: c.o=memoryview(nxt(c)); c.inflight+=1; out['sent']+=1
                    k=c.s.send(c.o[:4*MB]); c.o=c.o[k:]
            except BlockingIOError: pass
            except OSError as e:
                i=c.i; c.close(); cs.remove(c); out['rec']+=1
                try: cs.append(mk(i))
                except Exception as e2: out['err'][repr(e2)[:80]]=out['err'].get(repr(e2)[:80],0)+1; time.sleep(.05)
    for c in cs: c.close()
    out['left']=len(cs)
    print('   attacker',tag,{k:(v if k!='sample' else bytes(v)[:90]) for k,v in out.items()},flush=True); os._exit(0)
R=random.Random(3)
PRE=('nice','-n',os.environ['PNICE']) if 'PNICE' in os.environ else ()
p=Psd(*extra,pre=PRE); q=Psd(*extra,pre=PRE); prep(p.port); prep(q.port)
res={}; res['alone']=good(p.port,'g0')
def under(port,tag):
    mx=[0]; stop=[0]; G=[]
    def w():
        while not stop[0]:
            try: mx[0]=max(mx[0],(p if port==p.port else q).rss() or 0)
            except OSError: return
            time.sleep(.05)
    tg=threading.Thread(target=lambda:G.append(good(p.port,'g'+tag,8))); tg.start(); time.sleep(1.5)
    pid=os.fork()
    if pid==0:
        try: attacker(port,time.time()+6,tag)
        except BaseException as e: print('   attacker exc',repr(e)); os._exit(1)
    t=threading.Thread(target=w); t.start()
    os.waitpid(pid,0); tg.join(); stop[0]=1; t.join(); return G[0],mx[0]
res['control'],_=under(q.port,'c'); res['attack'],mx=under(p.port,'a'); time.sleep(1)
st=p.stats()
say('HOST',kind,N,extra,'alone',res['alone'],'control',res['control'],'attack',res['attack'],'rss max %.0f after %.0f'%(mx,p.rss()),'greedy',st['totals']['net'].get('greedy_peers'),'slow',st['totals']['net'].get('slow_peers'),'malformed',st['totals']['net'].get('malformed_frames'),'stop',p.stop(60),q.stop(60))
