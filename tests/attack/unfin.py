"""unfin.py [n] [cm]: peers that have not joined send 20 MiB of a 60 MiB frame each, again and again (closed: reconnect). Memory against --client-memory; p99 of a good worker."""
from psc import *
n=int(sys.argv[1]) if len(sys.argv)>1 else 100; cm=sys.argv[2] if len(sys.argv)>2 else '256M'; chunk=int(sys.argv[3]) if len(sys.argv)>3 else 20
p=Psd('--client-memory',cm)
def good(job,secs='5'):
    g2=subprocess.run(['/usr/bin/python3','good.py',str(p.port),secs,job],capture_output=True,text=True); return g2.stdout.strip() or g2.stderr.strip()[-200:]
say('unfin alone',good('g0'),'rss %.0f'%p.rss())
pid=os.fork()
if pid==0:
    os.nice(5)
    f=frame(PULL,pull_head(0,0,[section(0,nk=60<<20,kb=60<<20)]),b'',1,bl=60<<20)+bytes(chunk<<20)
    cs=[]
    end=time.time()+8; sent=0; rec=0
    while time.time()<end:
        while len(cs)<n:
            try: c=C(p.port,role='reader'); c.s.setblocking(False); c.o=memoryview(f); cs.append(c)
            except (Refused,Closed,OSError): break
        _,w,_=select.select([],[c for c in cs if len(c.o)],[],.05)
        for c in w:
            try: k=c.s.send(c.o[:1<<20]); c.o=c.o[k:]; sent+=k
            except BlockingIOError: pass
            except OSError: cs.remove(c); c.close(); rec+=1
        for c in list(cs):
            if not len(c.o):
                try:
                    if c.s.recv(1)==b'': raise ConnectionResetError
                except BlockingIOError: pass
                except OSError: cs.remove(c); c.close(); rec+=1
    say('unfin attacker sent MB',sent>>20,'reconnects',rec); os._exit(0)
time.sleep(1); mx=0; held=0; stop=False
def mon():
    global mx,held
    while not stop:
        mx=max(mx,p.rss() or 0); time.sleep(.05)
        if p.poll if False else True:
            try: held=max(held,p.stats()['totals']['net']['held_bytes'])
            except Exception as e: pass
t=threading.Thread(target=mon); t.start()
g=good('g1','6'); os.waitpid(pid,0); stop=True; t.join()
say('unfin n',n,'client-memory',cm,'max rss %.0f MB'%mx,'held max MB',held>>20,'good',g)
time.sleep(3); s=p.stats(); say('unfin after 3 s: rss %.0f'%p.rss(),'held',s['totals']['net']['held_bytes'],'greedy',s['totals']['net']['greedy_peers'],'conns',s['totals']['net']['connections'],'good',good('g2','3'),'stop',p.stop())
