"""flood.py: connection floods from one and many 127.x addresses, silent and greeted-idle; live worker and psctl status and a NEW worker must get through."""
from psc import *
import resource; resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
CM=int(sys.argv[1]) if len(sys.argv)>1 else 1024
p=Psd('--connections-max',CM)
def psctl():
    t=time.time(); r=subprocess.run([BIN+'/psctl','status','--server','127.0.0.1:%d'%p.port,'--timeout','10s'],capture_output=True,text=True); return 'psctl rc %d %.2fs %s'%(r.returncode,time.time()-t,r.stderr.strip()[:150])
def healthz():
    t=time.time(); r=subprocess.run(['curl','-s','-m','5','-o','/dev/null','-w','%{http_code}','http://127.0.0.1:%d/healthz'%p.hport],capture_output=True,text=True); return 'healthz %s %.2fs'%(r.stdout,time.time()-t)
g0=subprocess.run(['/usr/bin/python3','good.py',str(p.port),'3','gw'],capture_output=True,text=True).stdout; say('flood alone',g0.strip())
def flood(kind,nsrc,n,stop,store,stats):
    i=0
    while not stop.is_set():
        if len([1 for _ in store])>=n:
            # replace dead
            dead=0
            for k in range(len(store)-1,-1,-1):
                s=store[k]
                try:
                    d=s.recv(65536)
                    if d==b'': s.close(); store.pop(k); dead+=1
                except BlockingIOError: pass
                except OSError: s.close(); store.pop(k); dead+=1
            stats['dead']=stats.get('dead',0)+dead
            if not dead: time.sleep(.005)
            continue
        i+=1; src='127.%d.%d.%d'%(1+(i%nsrc)//65536,(i%nsrc)//250%250,1+(i%nsrc)%250)
        try:
            s=socket.socket(); s.bind((src,0)); s.settimeout(2); s.connect(('127.0.0.1',p.port))
            if kind!='silent':
                s.sendall(frame(HELLO,hello_head('operator' if kind=='op' else kind.split('-')[0],0xffffffff if kind=='op' else 0)))
            if kind=='reader-table': pass
            s.setblocking(False); store.append(s); stats['conn']=stats.get('conn',0)+1
        except OSError as e: stats['err']=stats.get('err',0)+1; s.close(); stats['last']=repr(e)
for kind,nsrc in [('silent',1),('silent',3000),('worker',1),('worker',3000),('reader',3000),('op',1),('op',3000)]:
    stop=threading.Event(); store=[]; st={}
    # live worker first
    g=subprocess.Popen(['/usr/bin/python3','good.py',str(p.port),'9','live'+kind],stdout=subprocess.PIPE,stderr=subprocess.PIPE,text=True)
    time.sleep(.5)
    th=[threading.Thread(target=flood,args=(kind,nsrc,CM*2//2,stop,store,st)) for _ in range(1)]; [t.start() for t in th]
    time.sleep(3); a=psctl(); h=healthz(); time.sleep(1.5); b=psctl()
    g2=subprocess.run(['/usr/bin/python3','good.py',str(p.port),'2','new'+kind],capture_output=True,text=True)
    o,e=g.communicate(); stop.set(); [t.join() for t in th]
    say('flood',kind,'sources',nsrc,'open',len(store),dict(st),a,h,b,'fds',p.nfd(),'rss %.0f'%p.rss())
    say('   live worker',o.strip() or e[-200:]); say('   new worker from 127.0.0.1',g2.stdout.strip() or g2.stderr.strip()[-200:])
    for s in store: s.close()
    time.sleep(.5)
# live worker on 127.0.0.1; worker reconnects repeatedly during flood from other addresses and greeted
say('flood end psctl',psctl(),'fds',p.nfd(),'stop',p.stop())
