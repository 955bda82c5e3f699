"""unfin2.py MODE: as unfin.py with default --client-memory, peers closing by themselves after CHUNK MiB. MODE psd|sink (control: same bytes go to another process)."""
from psc import *
mode=sys.argv[1]; n=int(sys.argv[2]); chunk=int(sys.argv[3]); kind=sys.argv[4] if len(sys.argv)>4 else 'unfinished'; bl=int(sys.argv[5]) if len(sys.argv)>5 else 60
p=Psd()
c=C(p.port); c.join(job='s',inc=1); c.table('t1',dim=1); c.call(LEAVE); c.close()
def good(job,secs='5'):
    g2=subprocess.run(['/usr/bin/python3','good.py',str(p.port),secs,job],capture_output=True,text=True); return g2.stdout.strip() or g2.stderr.strip()[-200:]
a=good('g0')
port=p.port; sink=None
if mode=='sink':
    ls=socket.socket(); ls.bind(('127.0.0.1',0)); ls.listen(500); port=ls.getsockname()[1]; sink=os.fork()
    if sink==0:
        ls.setblocking(False); cs=[]; end=time.time()+9
        while time.time()<end:
            r,_,_=select.select([ls]+cs,[],[],.1)
            for s in r:
                if s is ls: 
                    try: k,_=ls.accept(); k.setblocking(False); cs.append(k)
                    except OSError: pass
                else:
                    try:
                        if not s.recv(65536): raise OSError
                    except BlockingIOError: pass
                    except OSError: cs.remove(s); s.close()
        os._exit(0)
pid=os.fork()
if pid==0:
    os.nice(5)
    if kind=='unfinished': f=frame(PULL,pull_head(0,0,[section(0,nk=bl<<20,kb=bl<<20)]),b'',1,bl=bl<<20)+bytes(min(chunk,bl-1 if bl<chunk else chunk)<<20)
    elif kind=='whole-unjoined': f=frame(PUSH,push_head(1,0,1,1,[section(0,nk=1,kb=1,vb=(chunk<<20)-1)]),bytes(chunk<<20),1)
    elif kind=='badcrc': f=frame(PUSH,push_head(1,0,1,1,[section(0,nk=1,kb=1,vb=(chunk<<20)-1)]),bytes(chunk<<20),1,c=5)
    cs=[]; end=time.time()+8; sent=0; rec=0
    while time.time()<end:
        while len(cs)<n:
            try: c=C(port,role='worker',hello=mode!='sink'); c.s.setblocking(False); c.o=memoryview(f); cs.append(c)
            except (Refused,Closed,OSError): break
        _,w,_=select.select([],[c for c in cs if len(c.o)],[],.05)
        for c in w:
            try: k=c.s.send(c.o[:1<<18]); c.o=c.o[k:]; sent+=k
            except BlockingIOError: pass
            except OSError: cs.remove(c); c.close(); rec+=1; continue
            if not len(c.o):
                if kind=='whole-unjoined': c.o=memoryview(f)
                else: cs.remove(c); c.close(); rec+=1
    say('   attacker sent MB',sent>>20,'reconnects',rec); os._exit(0)
time.sleep(1); mx=0; held=0; stop=False
def mon():
    global mx,held
    while not stop:
        mx=max(mx,p.rss() or 0); time.sleep(.1)
t=threading.Thread(target=mon); t.start(); cpu0=sum(map(int,open('/proc/%d/stat'%p.p.pid).read().split()[13:15]))
u0=list(map(int,open('/proc/%d/stat'%p.p.pid).read().split()[13:15])); g=good('g1','6'); u1=list(map(int,open('/proc/%d/stat'%p.p.pid).read().split()[13:15])); os.waitpid(pid,0); stop=True; t.join()
say('unfin2',mode,kind,'n',n,'chunk',chunk,'of',bl,'alone',a,'under',g,'psd user/sys %.2f/%.2f s/s'%((u1[0]-u0[0])/600,(u1[1]-u0[1])/600),'max rss %.0f'%mx)
if sink: os.waitpid(sink,0)
time.sleep(1); say('   after: rss %.0f'%p.rss(),'stop',p.stop())
