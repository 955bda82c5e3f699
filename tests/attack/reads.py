"""reads.py: readers (and workers, operators) who never read, many replies; memory bounds; tables from one and many connections."""
from psc import *
import resource; resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
p=Psd('--client-memory','256M','--frame-timeout','6s')
c=C(p.port); c.join(job='s',inc=1); c.table('t1',dim=256); c.call(LEAVE)
def good(job,secs='3'):
    g2=subprocess.run(['/usr/bin/python3','good.py',str(p.port),secs,job],capture_output=True,text=True); return g2.stdout.strip() or g2.stderr.strip()[-200:]
say('reads alone',good('g0'),'rss %.0f'%p.rss())
mx=[0]; stopm=False
def mon():
    while not stopm:
        try: mx[0]=max(mx[0],p.rss())
        except OSError: return
        time.sleep(.02)
threading.Thread(target=mon,daemon=True).start()
def run(kind,n,role,mk,secs=9):
    cs=[]
    for _ in range(n):
        c=C(p.port,role=role,shard=0xffffffff if role=='operator' else 0,flags=2); c.s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,4096)
        if role=='reader': c.table('t1',must=1)
        if role=='worker': c.join(job='nr%s'%kind,inc=7,mode=1)
        c.s.setblocking(False); c.o=b''; c.sent=0; cs.append(c)
    f=mk(); mx[0]=0; end=time.time()+secs; g=subprocess.Popen(['/usr/bin/python3','good.py',str(p.port),str(secs-3),'r'+kind],stdout=subprocess.PIPE,text=True)
    closed=0; t0=time.time(); first=None; held=0
    while time.time()<end:
        for c in list(cs):
            try:
                if not c.o: c.o=f
                k=c.s.send(c.o); c.o=c.o[k:]; c.sent+=k
            except BlockingIOError: pass
            except OSError: cs.remove(c); closed+=1; first=first or time.time()-t0
        time.sleep(.01)
        if int(time.time()*10)%5==0:
            try: held=max(held,p.stats()['totals']['net']['held_bytes'])
            except Exception as e: held=repr(e)
    o=g.communicate()[0].strip(); st=p.stats()
    say('noread',kind,'conns',n,'closed',closed,'first after',first and '%.1f'%first,'max rss %.0f MB'%mx[0],'held max',held,'now',st['totals']['net']['held_bytes'],'good',o,{k:st['totals']['net'][k] for k in('slow_peers','greedy_peers','evicted_peers')})
    for c in cs: c.close()
def pullf(n,clock=0):
    kb=keys(range(1,n+1)); return lambda: frame(PULL,pull_head(clock,0,[section(0,nk=n,kb=len(kb))]),kb,1)
run('reader-1k',200,'reader',pullf(1000))
run('reader-60M',40,'reader',pullf(60000))
run('reader-60M-zstd',100,'reader',lambda: frame(PULL,pull_head(0,0,[section(0,nk=60000,kb=60000)]),zc(keys(range(1,60001))),1,1))
run('operator',60,'operator',lambda: frame(ADMIN,fb(1,'stats'),b'',1))
run('worker-beats',200,'worker',lambda: frame(BEAT,b'',b'',1)*100)
run('unfinished-frames',200,'reader',lambda: frame(PULL,pull_head(0,0,[section(0,nk=60<<20,kb=60<<20)]),b'',1,bl=60<<20)+bytes(20<<20))
say('rss after',p.rss(),'good',good('gend'),p.stats()['totals']['net']); time.sleep(1); say('stop',p.stop())
# tables
p=Psd('--tables-max','2000'); mx[0]=0
def mk(c,pre,n):
    st={}; t=time.time()
    for i in range(n):
        r=c.table('%s%d'%(pre,i)); st[r.st]=st.get(r.st,0)+1; txt=r.text
        if r.st: break
    return st,txt,'%.2f s'%(time.time()-t)
c=C(p.port); say('tables one unjoined connection',mk(c,'a',3000)); say(' same connection, old table found',c.table('a0').st,'new refused',c.table('zz'))
gw=C(p.port,src='127.0.0.9'); say(' good worker table',gw.join(job='g',inc=1).st,gw.table('good/1').st)
tot=[]
for i in range(20): d=C(p.port); tot.append(mk(d,'b%d_'%i,3000)[0]); d.close()
say('tables by 20 connections in turn',tot,'good worker new table',gw.table('good/2'),'old',gw.table('good/1').st)
say('rss %.1f'%p.rss(),'new worker join and table',C(p.port).join(job='g3',inc=3).st,C(p.port).table('good/3'))
t=time.time(); o=subprocess.run([BIN+'/psctl','drop','b0_0','--yes','--server','127.0.0.1:%d'%p.port],capture_output=True,text=True); say('psctl drop of a table without job slash',o.returncode,o.stdout[:200],o.stderr[:200]); say('stop',p.stop())
